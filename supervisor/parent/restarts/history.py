"""The steps before a checkpoint, as a worker that starts from it has judged them."""

from __future__ import annotations

import bisect
import contextlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from supervisor.errors import RunDirectoryError
from supervisor.parent.watching.rank_watch import joined
from supervisor.records import StepRecord
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightReader

# Several windows of every detector; a run of a million steps must not delay a restart.
HISTORY_STEPS = 5000


def records_until(path: Path, checkpoint_step: int | None) -> list[StepRecord]:
    """Returns the newest record of each of the last steps up to `checkpoint_step`, in order.

    Without a checkpoint a worker starts from nothing, and so does its judgement. A flight recorder
    that cannot be read has no history.
    """
    if checkpoint_step is None:
        return []
    newest: dict[int, StepRecord] = {}
    with contextlib.suppress(RunDirectoryError, OSError), FlightReader(path) as reader:
        first = max(0, reader.rows() - 2 * HISTORY_STEPS)
        for record in reader.records(first):
            if record.step <= checkpoint_step:
                newest[record.step] = record
    return [newest[step] for step in sorted(newest)][-HISTORY_STEPS:]


def group_history(
    rundir: RunDirectory, ranks: Iterable[int], checkpoint_step: int | None
) -> list[StepRecord]:
    """Returns the group's records of the last steps up to a checkpoint, see `records_until`."""
    return list(
        joined([deque(records_until(rundir.steps(rank), checkpoint_step)) for rank in ranks])
    )


def first_made(path: Path, attempt: int, step: int) -> float | None:
    """Returns when `attempt` first made `step` or a later one (unix seconds); None if it did not.

    Rows are in the order of attempts, and of steps within one; so a few of them need to be read. A
    flight recorder that cannot be read tells nothing.
    """
    with contextlib.suppress(RunDirectoryError, OSError), FlightReader(path) as reader:

        def place(index: int) -> tuple[int, int]:
            row = reader.read(index, index + 1)[0]
            return int(row["attempt"]), int(row["step"])

        count = reader.rows()
        found = bisect.bisect_left(range(count), (attempt, step), key=place)
        if found < count and place(found)[0] == attempt:
            return float(reader.read(found, found + 1)["time"][0])
    return None
