"""Which parts have their turn at a boundary: those whose clock says so."""

from __future__ import annotations

from abc import abstractmethod

from supervisor.worker.core.part import Part
from supervisor.worker.ground.boundary_schedule import BoundarySchedule


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
