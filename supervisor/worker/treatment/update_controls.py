"""Plans how each update is changed, applies the change before it, and takes it back after it.

What follows an update that was left out. Keeps gradients that are not finite out of the weights
that a second optimizer updates.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.actions.controls import Controls, hide_gradients
from supervisor.by_identity import ByIdentity
from supervisor.codes import DecisionSource, Subject
from supervisor.events.step_events import UpdateSkipped
from supervisor.records import ActionResult, Cause, Decision
from supervisor.training_state.optimizer_state import learning_rate
from supervisor.worker.core.boundaries import CheckRequests
from supervisor.worker.core.gradient_norms import gradient_norm, gradients_of
from supervisor.worker.core.progress import ScriptUse
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.regions.patches_collecting import AheadOfStep
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.treatment.action_runner import ActionRunner, Healing

MANY = 1000
"""Parameters without a gradient, beside as many as have one: gradients are collected once for torch
and us from there on. Where most are in use, it saves nothing."""
POISONED = "poisoned update"
"""Why an update is left out that the judgement keeps from the weights."""


class UpdateControls:
    """Applies `Controls`, the treatments in force, to the updates of every optimizer.

    No other place changes an update. The learning-rate factor multiplies ``group["lr"]`` for the
    update alone, so schedulers, the script's own schedule and its logging never see it; a factor of
    1 touches nothing.

    Args:
        controls: the treatments in force; actions set them.
        use: is told of the script's own clipping.
        skip_steps: steps whose updates the parent's order leaves out.
        on_skip: called with step and reason for each update that is left out.
        leaves_out_other: called when an optimizer that steps after the main optimizer has a
            gradient norm that is not finite, with that norm; returns whether its update is left
            out.
        on_rate: called with the factor of the main optimizer's learning rate for this update,
            unless it is 1.

    Attributes:
        controls, use: as given.
        is_open: something was changed that `end` must take back.
        step_follows: the step of the optimizer is next, unless its update is changed.
        leaves_out: the update under way finds no gradients.
    """

    def __init__(
        self,
        controls: Controls,
        use: ScriptUse,
        on_skip: Callable[[int, str], None],
        leaves_out_other: Callable[[float], bool] = lambda norm: True,
        on_rate: Callable[[float], None] = lambda factor: None,
        skip_steps: Collection[int] = (),
    ) -> None:
        self.controls = controls
        self._leaves_out_other = leaves_out_other
        self._on_rate = on_rate
        self._skip_steps = frozenset(skip_steps)
        self.use = use
        self._on_skip = on_skip
        # Number of groups, and parameters.
        self._parameters: ByIdentity[Optimizer, tuple[int, list[torch.Tensor]]] = ByIdentity()
        self._restore_lr: list[tuple[dict[str, Any], Any]] = []
        self._unhide: Callable[[], None] | None = None
        self._main: weakref.ref[Optimizer] | None = None  # first updated under a treatment
        self.is_open = self.step_follows = False
        self.leaves_out = False
        self._ahead = AheadOfStep()
        self._uses_few = False

    def parameters(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """All parameters, in the order of their groups, those of a group added later included."""
        groups = len(optimizer.param_groups)
        count: int | None
        found: list[torch.Tensor]
        count, found = self._parameters.get(optimizer, (None, []))
        if count != groups:
            found = [p for group in optimizer.param_groups for p in group["params"]]
            self._parameters[optimizer] = groups, found
        return found

    def gradients(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Those in use, in the same order."""
        parameters, found = self.parameters(optimizer), None
        if self._uses_few and self.step_follows and self.controls.is_neutral:
            found, self.is_open = self._ahead.collect(optimizer), True
        if found is None:
            found = gradients_of(parameters)
        self._uses_few = MANY + 2 * len(found) < len(parameters)
        return found

    def clip_norm_for_script(self, max_norm: float) -> float:
        """The bound that the script's own `clip_grad_norm_` is to use."""
        self.use.max_norm = max_norm
        controls = self.controls
        if controls.clip_factor == 1.0 and controls.clip_norm is None is controls.adaptive:
            return max_norm
        limit = controls.max_norm(max_norm)
        return max_norm if limit is None else limit

    def plan(self, optimizer: Optimizer, step: int, skip: str = "") -> UpdatePlan:
        """Returns what is changed about the update of `step` that is about to be made.

        Args:
            optimizer: whose update it is.
            step: the step under way.
            skip: why the judgement leaves the update out; empty if it does not.
        """
        if step in self._skip_steps:
            return UpdatePlan(skip="ordered after repeated failures")
        if skip:
            return UpdatePlan(skip=skip)
        controls = self.controls
        if controls.is_neutral:
            return AS_IT_IS
        if self._main is None:
            self._main = weakref.ref(optimizer)
        main = self._main() or optimizer
        return UpdatePlan(
            lr_factor=controls.rate_factor(learning_rate(main)),
            max_norm=None if self.use.max_norm is not None else controls.max_norm(None),
        )

    def plan_other(
        self, optimizer: Optimizer, step: int, *, scaler_skips: bool = False
    ) -> UpdatePlan:
        """The same for an optimizer that steps after the main optimizer, as a GAN's second one
        does. Its update is left out if its gradients are not finite, unless a scaler does that."""
        norm = None if scaler_skips else gradient_norm(self.parameters(optimizer))
        is_sick = norm is not None and not math.isfinite(norm)
        left_out = is_sick and self._leaves_out_other(float(norm or 0.0))
        return self.plan(optimizer, step, POISONED if left_out else "")

    def is_as_it_is(self, step: int) -> bool:
        """Whether nothing changes the update of `step`, but for its judgement."""
        return self.controls.is_neutral and step not in self._skip_steps

    def was_left_out(self, step: int) -> None:
        """The optimizer itself has left out the update of `step`, as it was told to."""
        self._on_skip(step, POISONED)

    def follower_has_norm(self, step: int, norm: float) -> None:
        """The same of an optimizer that steps after the main optimizer, by the norm of its
        gradients."""
        if self._leaves_out_other(norm):
            self._on_skip(step, POISONED)

    def apply(self, optimizer: Optimizer, step: int, plan: UpdatePlan, scale: float = 1.0) -> None:
        """Changes the update of `optimizer` that is about to be made; `end` takes it back.

        Args:
            scale: by which its gradients are still multiplied.
        """
        if plan is AS_IT_IS:
            return
        self.is_open = True
        self._ahead.undo()
        if plan.skip:
            self._unhide = hide_gradients(optimizer)
            self.leaves_out = True
            self._on_skip(step, plan.skip)
            return
        if plan.max_norm is not None:
            bound = plan.max_norm * scale
            torch.nn.utils.clip_grad_norm_(self.parameters(optimizer), bound)
        if plan.lr_factor == 1.0:
            return
        groups = [group for group in optimizer.param_groups if group.get("lr") is not None]
        if groups and self._main is not None and self._main() is optimizer:
            self._on_rate(plan.lr_factor)
        for group in groups:
            self._restore_lr.append((group, group["lr"]))
            group["lr"] = group["lr"] * plan.lr_factor

    def hide_again(self, optimizer: Optimizer) -> None:
        """Called when a closure has made new gradients: hides them if the update is left out."""
        if self._unhide is not None:
            self._unhide = hide_gradients(optimizer)

    def update_ended(self) -> None:
        """Takes back what was changed for the update that was just made."""
        if not self.is_open:
            return
        self.is_open = False
        self._ahead.forget()
        for group, lr in self._restore_lr:
            group["lr"] = lr
        self._restore_lr.clear()
        if self._unhide is not None:
            self._unhide()
            self._unhide = None
            self.leaves_out = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlan:
    """Made before an update from its judgement and from the treatments in force.

    Attributes:
        skip: why the update is left out; empty if it is made.
        lr_factor: by which the learning rate of each group is multiplied, for this update alone.
        max_norm: to which gradient norm we clip; None where the script clips, or nobody does.
    """

    skip: str = ""
    lr_factor: float = 1.0
    max_norm: float | None = None


AS_IT_IS = UpdatePlan()
"""Nothing is changed, to the bit."""


class SkippedUpdates:
    """Tells of it, finds the samples that were to blame, and heals what the forward has left."""

    def __init__(
        self, context: WorkerContext, samples: SampleGuard, healing: Healing, looks: CheckRequests
    ) -> None:
        self._by_order = frozenset(context.order.skip_steps)
        self._journal = context.group_journal
        self._progress = context.progress
        self._samples = samples
        self._healing = healing
        self._looks = looks

    def left_out(self, step: int, why: str) -> None:
        """Called when the update of `step` is left out."""
        source = DecisionSource.ORDER if step in self._by_order else None
        self._journal.write(UpdateSkipped(step=step, reason=why, source=source))
        self._samples.explain(self._progress.last_batch)
        self._healing.after_skip()
        self._looks.left_out(step)


class OtherOptimizerGuard:
    """The pipeline judges the main optimizer's part of a step alone, so the policy is asked
    here."""

    def __init__(self, context: WorkerContext, runner: ActionRunner) -> None:
        self._policy = context.policy
        self._progress = context.progress
        self._health = context.health
        self._runner = runner

    def leaves_out(self, norm: float) -> bool:
        """Whether the update under way, of an optimizer after the main one, is left out.

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


def update_controls_of(
    context: WorkerContext,
    samples: SampleGuard,
    healing: Healing,
    looks: CheckRequests,
    runner: ActionRunner,
    on_rate: Callable[[float], None],
) -> UpdateControls:
    """Returns the worker's own. `on_rate`: see `UpdateControls`."""
    return UpdateControls(
        context.controls,
        context.use,
        SkippedUpdates(context, samples, healing, looks).left_out,
        OtherOptimizerGuard(context, runner).leaves_out,
        on_rate,
        context.order.skip_steps,
    )
