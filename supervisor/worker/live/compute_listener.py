"""Chooses the steps that are calculated twice, and tells what was wrong."""

from __future__ import annotations

import time

from supervisor.codes import Found, Severity, Warned
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import CorruptionFound
from supervisor.records import Alert, Cause, StepRecord
from supervisor.settings import ComputeCheckSettings
from supervisor.worker.compute_check.compute_check import ComputeCheck
from supervisor.worker.compute_check.wrong_result import WrongResult
from supervisor.worker.core.part import Ended
from supervisor.worker.core.turns import TimedPart, Turns
from supervisor.worker.ground.budget import Pace
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.treatment.alert_teller import AlertTeller


class ComputeListener(TimedPart):
    """Off unless `compute_check.enabled`. Several ranks calculate the same step twice, so that none
    waits for another."""

    name = "compute check"

    def __init__(
        self,
        settings: ComputeCheckSettings,
        *,
        turns: Turns,
        check: ComputeCheck,
        alerts: AlertTeller,
        warn: RunWarnings,
    ) -> None:
        super().__init__(turns)
        share = settings.max_overhead if settings.enabled else 0.0
        self._pace = Pace(share, settings.every_steps if settings.enabled else None)
        self._check = check
        self._alerts = alerts
        self._warn = warn
        self._started = time.perf_counter()

    def is_due(self, step: int) -> bool:
        return step >= self._pace.next_step and not self._check.has_ended

    def next_boundary(self, step: int) -> tuple[float, float]:
        is_on = self._check.step >= 0
        return (step + 1 if is_on else self._pace.next_step), float("inf")

    def at_boundary(self, step: int) -> None:
        if self._check.step >= 0:
            self._end_step()
        if self.has_turn(step) and not self._check.has_ended:
            self._check.begin(step)
        if self._check.has_ended and self._pace.next_step < float("inf"):
            self._pace.next_step = float("inf")
            self._warn(f"nothing is calculated twice: {self._check.reason}", aloud=True)

    def ends(self, how: Ended) -> None:
        """Writes what was checked, and what it has cost."""
        if self._check.step >= 0:
            self._end_step()
        pace, counts = self._pace, self._check.counts
        if not pace.looks:
            return
        elapsed = time.perf_counter() - self._started
        share = pace.spent_s / elapsed if elapsed > 0 else 0.0
        self._warn.write(
            StateFound(
                found=Found.COMPUTE_CHECK,
                count=counts.calls,
                updates=pace.looks,
                cost_s=pace.spent_s,
                overhead=share,
                detail=(
                    f"{counts.calls} operators of {pace.looks} steps were calculated twice, in "
                    f"{share:.2%} of the time; {counts.rounded} results differed within rounding, "
                    f"{counts.varying} are never the same twice"
                ),
            )
        )

    def _end_step(self) -> None:
        checked = self._check.step
        found, cost_s = self._check.end()
        self._pace.took(checked, cost_s, time.perf_counter())
        for wrong in found:
            self._tell(checked, wrong)
        if found:
            self._warn(
                f"suspect hardware: results of step {checked} that came out otherwise when they "
                f"were calculated again: {len(found)}; test the device before you trust it",
                aloud=True,
                found=Warned.SUSPECT_HARDWARE,
            )

    def _tell(self, step: int, wrong: WrongResult) -> None:
        alert = Alert(
            detector="compute_check",
            severity=Severity.CRITICAL,
            category="weights",
            kind="wrong_result",
            cause=Cause.OTHER,
            message=wrong.sentence(),
            step=step,
            value=wrong.value,
            threshold=wrong.right,
        )
        self._alerts.tell(StepRecord(step=step), (alert,))
        if not wrong.in_training:
            return
        self._warn.write(
            CorruptionFound(
                step=step,
                tensor=wrong.name,
                elements=wrong.elements,
                value=wrong.value,
                before=wrong.right,
                bound=wrong.right,
                bit=wrong.bit,
                healed="in_place" if wrong.is_replaced else "no",
                index=wrong.index,
                from_step=step,
                rule="compute",
            )
        )
