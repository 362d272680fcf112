"""What earlier attempts made of the script's data, where the script cannot begin with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from supervisor.records import ExitCause, WorkerExit, WorkerOrder
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.run.set_aside import SetAside


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
