"""What the parent sees of each rank of an attempt, and of all of them together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from supervisor.agreement import agree
from supervisor.parent.watching.signs_of_life import LifeCounter, StepFeed
from supervisor.records import StepRecord
from supervisor.storage.run.rundir import RunDirectory


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
