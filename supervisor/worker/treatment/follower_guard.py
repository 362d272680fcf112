"""Keeps gradients that are not finite out of the weights that a second optimizer updates."""

from __future__ import annotations

from supervisor.codes import Subject
from supervisor.records import ActionResult, Cause, Decision
from supervisor.settings import PolicySettings
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_health import RunHealth
from supervisor.worker.treatment.action_runner import ActionRunner


class FollowerGuard:
    """The pipeline judges the lead's part of a step alone, so the policy is asked here."""

    def __init__(
        self, policy: PolicySettings, progress: Progress, health: RunHealth, runner: ActionRunner
    ) -> None:
        self._policy = policy
        self._progress = progress
        self._health = health
        self._runner = runner

    def leaves_out(self, norm: float) -> bool:
        """Whether the update under way, of an optimizer behind the lead, is left out.

        Args:
            norm: of its gradient; not finite.
        """
        if not self._policy.guard.skip_nonfinite:
            return False
        step = self._progress.steps_done
        decision = Decision(
            step=step,
            actions=("skip_update",),
            cause=Cause.NONFINITE,
            reason=f"the gradient norm of a second optimizer is {norm:g}",
            subject=Subject.GRADIENT,
            risk=self._health.risk,
            dry_run=self._policy.observe_only,
        )
        if decision.dry_run:
            self._runner.tell_dry(decision)
            return False
        result = ActionResult(
            name="skip_update",
            applied=True,
            detail=f"the second optimizer's update of step {step} is left out",
        )
        self._runner.tell(result, decision)
        return True
