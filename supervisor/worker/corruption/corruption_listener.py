"""Looks for corrupted state, tells of it, and heals it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from supervisor.codes import DecisionSource, Severity, Warned
from supervisor.events.step_events import CorruptionFound
from supervisor.records import ActionResult, Alert, Cause, Decision, StepRecord
from supervisor.training_state.snapshot import Snapshot, SnapshotRing
from supervisor.worker.core.boundaries import CheckRequests, StepTimes
from supervisor.worker.core.part import ALWAYS, Part
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor, heal
from supervisor.worker.corruption.state_check import StateCheck
from supervisor.worker.judging.step_judge import GOING_BACK, AlertTeller
from supervisor.worker.treatment.action_runner import ActionRunner

MOST = 64
"""Elements that are healed one by one; more of them are no flipped bits, but a damaged block."""


class CorruptionListener(Part):
    """Called before the pending actions: where something suspicious asks for it, and by the
    snapshots, right before each is taken.

    Args:
        requests: who asks for a look at the next boundary.
    """

    name = "corruption"

    def __init__(
        self,
        context: WorkerContext,
        check: StateCheck,
        requests: CheckRequests,
        snapshots: SnapshotRing,
        runner: ActionRunner,
        alerts: AlertTeller,
        times: StepTimes,
    ) -> None:
        self._check = check
        self._requests = requests
        self._snapshots = snapshots
        self._runner = runner
        self._alerts = alerts
        self._policy = context.policy
        self._warn = context.warn
        self._times = times
        self._last_step = -1  # of the snapshot with which the state is compared
        self._events = 0

    def at_boundary(self, step: int) -> None:
        if self._requests.take() or any(
            waiting.action.abandons_state for waiting in self._runner.pending
        ):
            self.check(step)

    def next_boundary(self, step: int) -> tuple[float, float]:
        return ALWAYS if self._requests.is_open else super().next_boundary(step)

    def checked(self, step: int, state: Mapping[str, Any]) -> None:
        """A snapshot was taken: the next look compares with it."""
        watch = self._check.watch.normalisation
        share = watch.keep_to_budget(step - self._last_step, self._times.usual_s)
        if share and not watch.is_on:
            self._warn(
                "running means and variances are not watched for flipped bits: there are so many "
                f"normalisations that it would take {share:.1%} of the time"
            )
        self._last_step = step
        self._check.checked(state)

    def check(self, step: int) -> bool:
        """Compares the state with the newest snapshot; returns whether it is sound, or healed in
        place. After a rollback it is another one."""
        snapshot = self._snapshots.newest()
        if snapshot is None or snapshot.step != self._last_step or snapshot.step >= step:
            return True
        started = time.perf_counter()
        findings = self._check.compare(snapshot, step)
        if not findings:
            return True
        healed = self._heal(step, snapshot, findings, started)
        for finding in findings:
            self._tell(step, snapshot.step, finding, healed)
        self._events += 1
        if self._events > 1:
            self._warn(
                f"suspect hardware: corrupted state was found {self._events} times in this run: "
                "test the memory and the device before you trust them",
                aloud=True,
                found=Warned.SUSPECT_HARDWARE,
            )
        return healed != "rollback"

    def _heal(
        self, step: int, snapshot: Snapshot, findings: list[CorruptedTensor], started: float
    ) -> str:
        """Returns ``in_place``, ``rollback`` or ``no``."""
        decision = Decision(
            step=step,
            actions=("heal_elements",),
            cause=Cause.OTHER,
            reason="the optimizer's own algebra forbids what the state holds",
            onset_step=snapshot.step + self._policy.rollback_margin_steps,
            dry_run=self._policy.observe_only,
            source=DecisionSource.PROOF,
        )
        if decision.dry_run:
            self._runner.tell_dry(decision)
            return "no"
        if not self._runner.agreement.is_alone:  # one must not treat what the others do not
            return "no"
        goes_back = any(waiting.action.name in GOING_BACK for waiting in self._runner.pending)
        if goes_back or self._requests.is_left_behind:
            return "rollback"  # is under way already
        if any(not finding.is_apart for finding in findings):
            self._runner.found_corruption(snapshot.step)
        if self._spread(findings):
            result = self._runner.run("rollback", decision)
            return "rollback" if result.applied else "no"
        heal(findings)
        count = sum(finding.count for finding in findings)
        result = ActionResult(
            name="heal_elements",
            applied=True,
            cost_s=time.perf_counter() - started,
            detail=f"elements that are those of step {snapshot.step} again: {count}",
        )
        self._runner.tell(result, decision)
        return "in_place"

    def _spread(self, findings: list[CorruptedTensor]) -> bool:
        """Whether the rest of the state may have suffered."""
        trained = [finding for finding in findings if not finding.is_apart]
        if sum(finding.count for finding in trained) > MOST:
            return True
        is_whole = all(finding.is_listed for finding in trained)
        return bool(trained) and (not is_whole or self._check.watch.saw_wild_gradients())

    def _tell(self, step: int, from_step: int, finding: CorruptedTensor, healed: str) -> None:
        value, before, bit = finding.worst
        alert = Alert(
            detector="corruption",
            severity=Severity.CRITICAL,
            category="weights",
            kind="corrupted_state",
            cause=Cause.OTHER,
            message=finding.sentence(),
            step=step,
            value=value,
            threshold=finding.bound,
        )
        self._alerts.tell(StepRecord(step=step), (alert,))
        self._warn.write(
            CorruptionFound(
                step=step,
                tensor=finding.name,
                elements=finding.count,
                value=value,
                before=before,
                bound=finding.bound,
                bit=bit,
                healed=healed,
                index=finding.index(),
                from_step=from_step,
                rule=finding.rule,
            )
        )
