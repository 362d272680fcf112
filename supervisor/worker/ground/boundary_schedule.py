"""When the next boundary has something to do, and what was asked for there."""

from __future__ import annotations

import math


class BoundarySchedule:
    """From when on boundaries are looked at; the monitor passes all others by.

    Asking every listener at every boundary would be expensive, so they say it beforehand.

    Attributes:
        step: steps done.
        time: `time.monotonic()`; whichever comes first.
        checkpoint_reason: why a checkpoint was asked for; empty if none was.
        leave: ("interrupted", "restart", "retry", "stop" or "completed", reason) once the process
            is to end.
    """

    __slots__ = ("checkpoint_reason", "leave", "step", "time")

    def __init__(self) -> None:
        self.step = 0.0
        self.time = math.inf
        self.checkpoint_reason = ""
        self.leave: tuple[str, str] | None = None

    def ask(self) -> None:
        """The next boundary is to be looked at."""
        self.step = 0.0

    def ask_for_checkpoint(self, reason: str) -> bool:
        """The next boundary is to be saved at; returns True, as actions want it."""
        self.checkpoint_reason = reason
        self.ask()
        return True

    def ask_for_restart(self, reason: str) -> None:
        """The process is to end at the next boundary, and another one to begin."""
        self.ask_to_leave("restart", reason)

    def ask_for_stop(self, reason: str) -> None:
        """The process is to end at the next boundary, for good."""
        self.ask_to_leave("stop", reason)

    def ask_to_leave(self, note: str, reason: str) -> None:
        """See `leave`. A signal's handler may call this."""
        self.leave = (note, reason)
        self.ask()

    @property
    def is_leaving(self) -> bool:
        """Whether somebody has asked for this process's end."""
        return self.leave is not None

    @property
    def is_restarting(self) -> bool:
        """Whether the state of the next boundary is to be left behind."""
        return self.leave is not None and self.leave[0] in ("restart", "retry")

    def plan(self, step: float, time: float) -> None:
        """Called at the end of a boundary with when the next one is needed."""
        self.step, self.time = step, time
        if self.leave is not None:  # a signal came after the listener that leaves had its turn
            self.ask()
