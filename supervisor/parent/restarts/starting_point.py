"""Where a new attempt starts, and what it is told of the steps and attempts before."""

from __future__ import annotations

import bisect
import contextlib
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from supervisor.codes import ExitSign, Found
from supervisor.errors import CheckpointError, RunDirectoryError, UsageError
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import AttemptStarted, WorkerExited
from supervisor.events.state_events import Resumed, StateFound
from supervisor.parent.watching.rank_watch import joined
from supervisor.records import ExitCause, StepRecord, WorkerExit, WorkerOrder
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.storage.script_files.set_aside import SetAside
from supervisor.storage.steps.flight_recorder import FlightReader

LAST_STABLE = "last-stable"
LATEST = "latest"


class Checkpoints(Protocol):
    """What is needed of a `CheckpointRing`."""

    def newest_verified(self, before_step: int | None = None) -> Checkpoint | None: ...

    def last_stable(self, before_step: int | None = None) -> Checkpoint | None: ...

    def get(self, step: int) -> Checkpoint: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """The checkpoint of an attempt (None: from the script's start), and why, in a few words.

    `is_older`: later checkpoints contain the trouble, and are to be removed.
    """

    step: int | None
    reason: str
    is_older: bool = False


def after_failure(
    checkpoints: Checkpoints,
    start: str,
    *,
    onset_step: int | None = None,
    before_step: int | None = None,
) -> StartingPoint:
    """Returns where an attempt starts after another one failed.

    Args:
        checkpoints: of the run; damaged ones are passed over.
        start: ``stable`` after numerical trouble, else ``latest``.
        onset_step: first step at which the trouble was visible, if known. Early in a run nothing
            is stable yet; then a checkpoint from well before the onset is the next best.
        before_step: with ``latest``, only checkpoints of earlier steps.
    """
    if start != "stable":
        newest = checkpoints.newest_verified(before_step)
        if before_step is None:
            return _point(newest, "newest verified checkpoint")
        return _point(
            newest, f"newest verified checkpoint before step {before_step}", is_older=True
        )
    stable = checkpoints.last_stable()
    if stable is not None:
        return _point(stable, "newest stable checkpoint", is_older=True)
    if onset_step is not None and onset_step > 0:
        earlier = checkpoints.newest_verified(before_step=onset_step)
        if earlier is not None:
            reason = f"none is stable: newest one before the trouble began at step {onset_step}"
            return _point(earlier, reason, is_older=True)
    return StartingPoint(step=None, reason="no stable checkpoint: from the start", is_older=True)


def as_asked(checkpoints: Checkpoints, wish: str) -> StartingPoint:
    """Returns where `resume --from WISH` starts.

    Raises:
        UsageError: there is no such checkpoint, it is damaged, or `wish` is no step.
    """
    if wish == LATEST:
        found = checkpoints.newest_verified()
    elif wish == LAST_STABLE:
        found = checkpoints.last_stable()
    else:
        found = _of_step(checkpoints, wish)
    if found is None:
        raise UsageError(f"--from {wish}: this run has no such checkpoint: see RUN/checkpoints")
    return _point(found, f"asked for with --from {wish}", is_older=wish != LATEST)


def _of_step(checkpoints: Checkpoints, wish: str) -> Checkpoint:
    if not wish.isdecimal():
        raise UsageError(f"--from {wish}: give {LAST_STABLE}, {LATEST} or a step")
    try:
        return checkpoints.get(int(wish))
    except CheckpointError as error:
        raise UsageError(f"--from {wish}: {error}") from error


def _point(found: Checkpoint | None, reason: str, *, is_older: bool = False) -> StartingPoint:
    if found is None:
        return StartingPoint(
            step=None, reason="no checkpoint to use: from the start", is_older=is_older
        )
    return StartingPoint(step=found.step, reason=reason, is_older=is_older)


class ExactRetries:
    """A retry is no crash: it is not counted, and begins with no careful settings."""

    def __init__(self) -> None:
        self._asked: StateFound | None = None

    def saw(self, events: Iterable[JournalEvent]) -> None:
        """Takes note of the worker's events, as they are merged."""
        for event in events:
            match event:
                case StateFound(found=Found.RETRY_ASKED):
                    self._asked = event

    def order(
        self, order: WorkerOrder, worker_exit: WorkerExit, checkpoints: Checkpoints
    ) -> WorkerOrder | None:
        """Returns the order of the retry; None if the attempt did not end for one, or if its
        checkpoint cannot be used.

        Args:
            order: of the attempt that has ended.
        """
        asked, self._asked = self._asked, None
        if worker_exit.sign is not ExitSign.EXACT_RETRY or asked is None:
            return None
        if asked.step is None or asked.before_step is None:
            return None
        start = checkpoints.newest_verified(asked.before_step + 1)
        if start is None:
            return None
        return replace(
            order,
            attempt=order.attempt + 1,
            checkpoint_step=start.step,
            reason=f"the newest from before the trouble, to compute step {asked.step} again",
            retry_until=asked.step,
            retry_of=order.attempt,
            retries=order.retries + 1,
        )


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


def may_be_in_the_way(order: WorkerOrder, worker_exit: WorkerExit) -> bool:
    """Whether an attempt that began from nothing behind others failed before its first step."""
    is_later = order.checkpoint_step is None and order.attempt > 1
    has_failed = worker_exit.cause is ExitCause.EXCEPTION
    return is_later and has_failed and worker_exit.last_step is None


def set_leftovers_aside(
    rundir: RunDirectory, ranks: Iterable[int], attempt: int
) -> tuple[int, Path | None]:
    """Moves all that the run's script has made out of its way: it starts as it first did.

    Called between two attempts, while no process of the script is alive.

    Args:
        ranks: those of this node.
        attempt: the one that failed; names the folder.

    Returns:
        How many files were moved, and where they are; None if there were none.

    Raises:
        OSError: a file could not be moved.
    """
    count, place = 0, None
    for rank in ranks:
        record, aside = ScriptFiles(rundir, rank), SetAside(rundir, rank)
        files, folders = record.results(with_data=True)
        if not files and not folders:
            continue
        aside.move_all(files)
        for folder in sorted(folders, key=len, reverse=True):
            with contextlib.suppress(OSError):  # something else is in it
                aside.fold(folder)
        left = aside.arrived()
        if files:
            place = aside.keep_for_a_person(files, left, f"attempt_{attempt}")
        record.forget(gone={*files, *folders})
        count += len(files)
    return count, place


NEWEST = 8
"""Failures that count. The mean of eight intervals is within a third of the machine's own (its
deviation is 1/sqrt(8) of it), and a cluster that has become better is believed within a day."""
_OUTSIDE = (ExitCause.KILLED, ExitCause.PREEMPTED, ExitCause.INTERRUPTED, ExitCause.HANG)
"""What a machine does to a training; what the training does to itself comes again at its step."""


def failures_seen(events: Iterable[JournalEvent]) -> tuple[int, float]:
    """Returns how many attempts failed from outside, and the seconds for which they trained.

    Imports, data and the replay of a resume are not training: they count from the event `resumed`,
    or in an attempt from the script's start from the first event that has a step.
    """
    lengths: list[float] = []
    began, resumes = math.nan, False
    for event in events:
        if isinstance(event, AttemptStarted):
            began, resumes = math.nan, event.checkpoint_step is not None
        elif isinstance(event, WorkerExited):
            length = _seconds(event) - began
            if event.cause in _OUTSIDE and length >= 0.0:
                lengths.append(length)
        elif math.isnan(began) and (isinstance(event, Resumed) or not resumes):
            began = math.nan if event.step is None else _seconds(event)
    newest = lengths[-NEWEST:]
    return len(newest), sum(newest)


def _seconds(event: JournalEvent) -> float:
    try:
        return datetime.fromisoformat(event.time).timestamp()
    except ValueError:  # a damaged line
        return math.nan
