"""Reports the outcome of a restart that the ladder asked for; the new process cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime

from supervisor.codes import ActionOutcome, ExitCause, Phase
from supervisor.events.event import JournalEvent
from supervisor.events.step_events import ActionEvent
from supervisor.records import WorkerExit

_HEALED = frozenset({ExitCause.COMPLETED, ExitCause.INTERRUPTED, ExitCause.PREEMPTED})


class RestartReceipt:
    """Writes the outcome of the action ``restart`` when the attempt that followed has ended.

    It helped if that attempt ended well, or got `verify_steps` beyond the step of the restart.

    Args:
        write: writes an event.
        verify_steps: as for all treatments (`PolicySettings.verify_steps`).
        made_at: (attempt, step) → when that attempt first made that step or a later one, unix
            seconds; None if it did not.
        clock: unix seconds.
    """

    def __init__(
        self,
        write: Callable[[JournalEvent], object],
        verify_steps: int,
        made_at: Callable[[int, int], float | None] = lambda attempt, step: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self._verify_steps = verify_steps
        self._made_at = made_at
        self._clock = clock
        self._asked: ActionEvent | None = None

    def saw(self, events: Iterable[JournalEvent]) -> None:
        """Takes note of the worker's events, as they are merged."""
        for event in events:
            match event:
                case ActionEvent(name="restart", outcome=ActionOutcome.APPLIED):
                    self._asked = event

    def worker_exited(self, attempt: int, worker_exit: WorkerExit) -> None:
        """Called when an attempt has ended and its events are merged."""
        asked = self._asked
        if asked is None or asked.step is None or (asked.attempt or 0) >= attempt:
            return
        self._asked = None
        last_step = -1 if worker_exit.last_step is None else worker_exit.last_step
        helped = last_step >= asked.step + self._verify_steps or worker_exit.cause in _HEALED
        self._write(
            ActionEvent(
                step=worker_exit.last_step,
                name="restart",
                rung=asked.rung,
                cause=asked.cause,
                cost_s=self._cost_s(asked, asked.step, attempt),
                outcome=ActionOutcome.HELPED if helped else ActionOutcome.FAILED,
                applied_at=asked.step,
                phase=Phase.VERIFIED,
            )
        )

    def _cost_s(self, asked: ActionEvent, step: int, attempt: int) -> float:
        began = datetime.fromisoformat(asked.time).timestamp()
        made_again = self._made_at(attempt, step)
        return max(0.0, (self._clock() if made_again is None else made_again) - began)
