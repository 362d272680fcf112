"""What the parent sees of each rank of an attempt, and of all of them together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from supervisor.agreement import agree
from supervisor.records import StepRecord
from supervisor.storage.run.mailboxes import read_count
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightReader


class RankWatch:
    """The signs of life of one rank in one attempt.

    Attributes:
        rank: whose they are.
        feed: its steps.
        life: its other signs of life.
    """

    def __init__(self, rundir: RunDirectory, rank: int) -> None:
        self.rank = rank
        self.feed = StepFeed(rundir.steps(rank))
        self.life = LifeCounter(rundir.alive(rank))


class GroupFeed:
    """The steps of all ranks, as the group's records, in order.

    Attributes:
        last_step: the last step that all ranks have recorded; None without one.
    """

    def __init__(self, watches: Sequence[RankWatch]) -> None:
        self._watches = watches
        self._waiting: list[deque[StepRecord]] = [deque() for _ in watches]
        self.last_step: int | None = None

    def take(self) -> tuple[int, list[StepRecord]]:
        """Returns how many rows any rank has added, and the steps that all have recorded now.

        Raises:
            RunDirectoryError: a flight recorder cannot be read.
        """
        rows = 0
        for watch, waiting in zip(self._watches, self._waiting, strict=True):
            found = watch.feed.take()
            rows += len(found)
            waiting.extend(found)
        records = list(joined(self._waiting))
        if records:
            self.last_step = records[-1].step
        return rows, records

    def behind(self) -> list[int]:
        """Returns the ranks whose next step is missing while others have recorded theirs."""
        if not any(self._waiting):
            return []
        pairs = zip(self._watches, self._waiting, strict=True)
        return [watch.rank for watch, waiting in pairs if not waiting]

    def close(self) -> None:
        for watch in self._watches:
            watch.feed.close()


def joined(waiting: Sequence[deque[StepRecord]]) -> Iterable[StepRecord]:
    """Takes the steps that all ranks have from the front of their records."""
    while all(waiting):
        newest = max(records[0].step for records in waiting)
        if all(records[0].step == newest for records in waiting):
            yield agree([records.popleft() for records in waiting])
        else:  # a step that a rank lacks
            for records in waiting:
                if records[0].step < newest:
                    records.popleft()


class StepFeed:
    """The steps that were written since the last look, in order."""

    def __init__(self, path: Path) -> None:
        """Begins after the rows that `path` holds now: they are of earlier attempts."""
        self._reader = FlightReader(path)
        self._rows = self._reader.rows()
        self._had_rows = self._rows > 0
        self.last_step: int | None = None

    @property
    def has_stepped(self) -> bool:
        """Whether this run made any step, in this attempt or an earlier one."""
        return self._had_rows or self.last_step is not None

    def take(self) -> list[StepRecord]:
        """Returns the new steps.

        Raises:
            RunDirectoryError: the flight recorder cannot be read.
        """
        if self._reader.rows() <= self._rows:
            return []
        records = self._reader.records(self._rows)
        self._rows += len(records)
        if records:
            self.last_step = records[-1].step
        return records

    def close(self) -> None:
        self._reader.close()


class LifeCounter:
    """The worker's count of signs of life; a file that is missing or short counts as unknown."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = read_count(path)

    def has_moved(self) -> bool:
        """Returns whether the worker counted since the last call."""
        value = read_count(self._path)
        moved = value is not None and value != self._last
        self._last = value
        return moved
