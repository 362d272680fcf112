"""The receipt of a restart that the ladder asked for: the new process cannot know of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from supervisor.records import ExitCause, WorkerExit

_HEALED = frozenset({ExitCause.COMPLETED, ExitCause.INTERRUPTED, ExitCause.PREEMPTED})


class RestartReceipt:
    """Writes the outcome of the action ``restart`` when the attempt that it led to has ended.

    It helped if that attempt ended well, or went `verify_steps` beyond the step of the restart. It
    cost the seconds from the asking until that step was made again, or until the attempt's end.

    Args:
        write: writes an event of a kind, with its step and fields.
        verify_steps: as for all treatments (`PolicySettings.verify_steps`).
        made_at: (attempt, step) → when that attempt first made that step or a later one, unix
            seconds; None if it did not.
        clock: unix seconds.
    """

    def __init__(
        self,
        write: Callable[..., object],
        verify_steps: int,
        made_at: Callable[[int, int], float | None] = lambda attempt, step: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self._verify_steps = verify_steps
        self._made_at = made_at
        self._clock = clock
        self._asked: Mapping[str, Any] | None = None

    def saw(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Takes note of the worker's events, as they are merged."""
        for event in events:
            was_applied = event.get("kind") == "action" and event.get("outcome") == "applied"
            if was_applied and event.get("name") == "restart":
                self._asked = event

    def worker_exited(self, attempt: int, worker_exit: WorkerExit) -> None:
        """Called when an attempt has ended and its events are merged."""
        asked = self._asked
        if asked is None or int(asked["attempt"]) >= attempt:
            return
        self._asked = None
        last_step = -1 if worker_exit.last_step is None else worker_exit.last_step
        got_further = last_step >= int(asked["step"]) + self._verify_steps
        self._write(
            "action",
            step=worker_exit.last_step,
            name="restart",
            rung=asked.get("rung"),
            cause=asked.get("cause"),
            cost_s=self._cost_s(asked, attempt),
            outcome="helped" if got_further or worker_exit.cause in _HEALED else "failed",
            applied_at=asked["step"],
            phase="verified",
        )

    def _cost_s(self, asked: Mapping[str, Any], attempt: int) -> float:
        began = datetime.fromisoformat(str(asked["time"])).timestamp()
        made_again = self._made_at(attempt, int(asked["step"]))
        return max(0.0, (self._clock() if made_again is None else made_again) - began)
