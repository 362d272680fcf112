"""Between two steps, when the state is whole: what is done then, and when it is looked at."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from supervisor.worker.core.part import Part


class BoundarySchedule:
    """From when on boundaries are looked at; the monitor passes all others by.

    Asking every listener at every boundary would be expensive, so they say it beforehand.

    Attributes:
        step: steps done.
        time: `time.monotonic()`; whichever comes first.
        saving_time: the same for parts that may save the state.
        checkpoint_reason: why a checkpoint was asked for; empty if none was.
        leave: ("interrupted", "restart", "retry", "stop", "mistake" or "completed", reason) once
            the process is to end.
        repeats: whether the boundary under way is one that another process of this rank has come
            to before: its state is neither saved nor kept again.
    """

    __slots__ = ("checkpoint_reason", "leave", "repeats", "saving_time", "step", "time")

    def __init__(self) -> None:
        self.step = 0.0
        self.time = self.saving_time = math.inf
        self.checkpoint_reason = ""
        self.leave: tuple[str, str] | None = None
        self.repeats: Callable[[], bool] = lambda: False

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

    def ask_to_stop_saved(self, reason: str) -> None:
        """The same for a mistake of the script: the state is worth saving."""
        self.ask_to_leave("mistake", reason)

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

    def plan(self, step: float, time: float, saving_time: float | None = None) -> None:
        """Called at the end of a boundary with when the next one is needed."""
        self.step, self.time = step, time
        self.saving_time = time if saving_time is None else saving_time
        if self.leave is not None:  # a signal came after the listener that leaves had its turn
            self.ask()


class TimedPart(Part):
    """One that acts when its own clock says so: saves and copies of the state.

    Clocks differ between ranks, so it asks `Turns`, not itself, whether its turn has come.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        turns.take_part(self)

    @abstractmethod
    def is_due(self, step: int) -> bool:
        """Whether this process's clock says that it is time, at the boundary of `step`."""

    def has_turn(self, step: int) -> bool:
        """Whether it is to act at the boundary of `step`."""
        return self._turns.has(self, step)


class Turns:
    """Of a training in one process: each part's own clock decides.

    Attributes:
        schedule: of boundaries.
        are_own: a part may also act at another boundary than the one that was its turn.
    """

    are_own = True

    def __init__(self, schedule: BoundarySchedule) -> None:
        self.schedule = schedule
        self._timed: list[TimedPart] = []

    def take_part(self, part: TimedPart) -> None:
        """Called once by each part, in the same order on all ranks."""
        self._timed.append(part)

    def has(self, part: TimedPart, step: int) -> bool:
        """Whether `part` acts at the boundary of `step`."""
        return part.is_due(step)


class GroupTurns(Turns):
    """Of several ranks: the first rank's clocks decide, told with the step before the boundary."""

    are_own = False

    def __init__(self, schedule: BoundarySchedule) -> None:
        super().__init__(schedule)
        self._granted = 0

    def due(self, step: int) -> int:
        """Returns a bit for each part that this rank's clock would have act at `step`."""
        return sum(1 << bit for bit, timed in enumerate(self._timed) if timed.is_due(step))

    def grant(self, due: int) -> None:
        """The parts of these bits act at the next boundary, and no others."""
        self._granted = due

    def has(self, part: TimedPart, step: int) -> bool:
        return bool(self._granted >> self._timed.index(part) & 1)


PAUSE = 3.0
"""Steps that take more than so many usual ones (an evaluation came between) count as no more."""

FRESH = 0.3
"""Share of the steps since the last look in what is known of their length: with `PAUSE`, an
evaluation between two looks makes them seem six tenths longer at most."""

SLOW_START = 0.5
"""Of the usual length: the first steps, which compile and allocate, are not what is usual."""


class StepTimes(Part):
    """Measured from one boundary that is looked at to the next; the first of the listeners.

    Attributes:
        now: `time.monotonic()` at this boundary.
        usual_s: seconds a step; 0 while not known.
    """

    name = "step times"

    def __init__(self) -> None:
        self.now = 0.0
        self.usual_s = 0.0
        self._last = (0, 0.0)

    def at_boundary(self, step: int) -> None:
        self.now = time.monotonic()
        (last_step, last_time), self._last = self._last, (step, self.now)
        if last_time and step > last_step:
            took, usual = (self.now - last_time) / (step - last_step), self.usual_s
            is_new = not usual or took < SLOW_START * usual
            self.usual_s = took if is_new else usual + FRESH * (min(took, PAUSE * usual) - usual)


ENOUGH = 3
WINDOW = 100
"""Updates left out within so many steps are no longer the fault of single batches."""


class CheckRequests:
    """An update that was left out may be the state's fault: the first one asks, and the third
    within a window, which is evidence against the state.

    Attributes:
        schedule: of boundaries.
        is_open: a look was asked for and not taken yet.
    """

    def __init__(self, schedule: BoundarySchedule) -> None:
        self.is_open = False
        self.schedule = schedule
        self._left_out: deque[int] = deque(maxlen=ENOUGH)

    def left_out(self, step: int) -> None:
        """The update of `step` was left out."""
        earlier = [other for other in self._left_out if 0 <= step - other < WINDOW]
        self._left_out = deque([*earlier, step], maxlen=ENOUGH)
        if len(self._left_out) in (1, ENOUGH):
            self.is_open = True
            self.schedule.ask()

    def ask(self) -> None:
        """The state is to be looked at before it is left behind."""
        self.is_open = True
        self.schedule.ask()

    @property
    def is_left_behind(self) -> bool:
        """Whether the process goes back to a checkpoint at this boundary."""
        return self.schedule.is_restarting

    def take(self) -> bool:
        """Returns whether a look was asked for, once."""
        was_open, self.is_open = self.is_open, False
        return was_open
