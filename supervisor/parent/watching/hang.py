"""Handles a hung worker: reads its stacks, then ends it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.parent.process.process import Processes
from supervisor.parent.watching.collective_records import (
    SilentRank,
    find_hanging_rank,
    read_records,
)
from supervisor.parent.watching.place_of_silence import last_dump
from supervisor.parent.watching.rank_watch import RankWatch
from supervisor.settings import WatchdogSettings
from supervisor.storage.run.mailboxes import read_count, stacks_signal
from supervisor.storage.run.rundir import RunDirectory

# A hung worker seldom answers SIGTERM; one that wakes up can still close its files.
GRACE_S = 10.0
_LAST_DUMP_S = 1.0
_LATE_LOOKS = 50
_LATE_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class HangEvidence:
    """Where a worker hung: innermost frames of its main thread, and all its stacks.

    Attributes:
        rank: the one that hangs; None in a training of one process.
        why: how it was found among several.
    """

    frames: tuple[str, ...]
    stacks: Path
    rank: int | None = None
    why: str = ""


def dump_stacks(
    process: Processes,
    settings: WatchdogSettings,
    rundir: RunDirectory,
    attempt: int,
    watches: Sequence[RankWatch],
    *,
    is_back: Callable[[], bool],
) -> HangEvidence | None:
    """Makes the worker dump its stacks several times; returns None if it lives after all.

    `faulthandler` answers even while the interpreter's lock is held. Equal dumps distinguish a wait
    from a slow loop.
    """
    forget_records(rundir, attempt, watches)
    for dump in range(settings.stack_dumps):
        ask_for_stacks(process, rundir, watches)
        is_last = dump == settings.stack_dumps - 1
        pause_s = settings.stack_interval_s
        if process.wait(min(pause_s, _LAST_DUMP_S) if is_last else pause_s) or is_back():
            break
    if is_back():
        return None
    for watch in watches:
        _await_frames(process, rundir.stacks(attempt, watch.rank))
    silent = [look_at(watch, rundir, attempt) for watch in watches]
    blamed, why = find_hanging_rank(silent)
    frames = next(rank.frames for rank in silent if rank.rank == blamed)
    return HangEvidence(
        frames=frames,
        stacks=rundir.stacks(attempt, blamed),
        rank=blamed if len(silent) > 1 else None,
        why=why,
    )


def forget_records(rundir: RunDirectory, attempt: int, watches: Sequence[RankWatch]) -> None:
    """Called before stacks are asked for: a rank that cannot answer must not seem to stand where it
    stood when it was asked before."""
    for watch in watches:
        with contextlib.suppress(OSError):  # the disk is not to be written to any more
            rundir.records(attempt, watch.rank).unlink(missing_ok=True)


def ask_for_stacks(process: Processes, rundir: RunDirectory, watches: Sequence[RankWatch]) -> None:
    """Sends each rank the signal on which it writes them, if it has said that there is one."""
    signals = {watch.rank: stacks_signal(rundir.signals(watch.rank)) for watch in watches}
    for signum in {*signals.values()} - {0}:
        process.send(signum, but=[rank for rank, its in signals.items() if its != signum])


def end_hung(process: Processes, grace_s: float = GRACE_S) -> None:
    """Asks the worker to end; the caller kills it, and its descendants, if it still lives."""
    process.send(signal.SIGTERM)
    process.wait(grace_s)


def look_at(watch: RankWatch, rundir: RunDirectory, attempt: int) -> SilentRank:
    """Returns what a rank has left for others to see where it stands."""
    return SilentRank(
        rank=watch.rank,
        collectives=read_count(rundir.collectives(watch.rank)) or None,
        last_step=watch.feed.last_step,
        frames=_frames(rundir.stacks(attempt, watch.rank)),
        records=read_records(rundir.records(attempt, watch.rank)),
    )


def _await_frames(process: Processes, stacks: Path) -> None:
    """The dump may be late on a machine that swaps."""
    for _ in range(_LATE_LOOKS):
        if _frames(stacks) or process.wait(_LATE_LOOK_S):
            return


def _frames(stacks: Path) -> tuple[str, ...]:
    try:
        return main_thread_frames(stacks.read_text(errors="replace"))
    except OSError:
        return ()


_OURS = str(Path(__file__).parents[2]) + os.sep


_SHOWN = 5


def main_thread_frames(text: str, ours: str = _OURS) -> tuple[str, ...]:
    """Returns the main thread's frames in the last dump of `text`, innermost first.

    Each frame reads ``function (file:line)``. Frames in the folder `ours`, which start the user's
    script and pass its calls on, are left out unless there are no others. Empty when nothing was
    dumped.
    """
    frames = next((block for _, block in reversed(last_dump(text))), [])
    others = [frame for frame in frames if not frame[0].startswith((ours, "<frozen "))]
    return tuple(f"{name} ({file}:{line})" for file, line, name in (others or frames)[:_SHOWN])
