"""Opens the run directory that a command is given."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.errors import RunDirectoryError, UsageError

if TYPE_CHECKING:
    from supervisor.storage.run.rundir import RunDirectory


RUNS = Path("runs")
"""Where `supervisor run` makes its directories, beside the script."""


def newest_run(*, to_resume: bool = False) -> Path:
    """Returns the newest run in ``runs/``, and says on standard error which one it is.

    Args:
        to_resume: the newest that neither goes on nor has come to its end.

    Raises:
        UsageError: there is none.
    """
    from supervisor.storage.run.lease import living_holder
    from supervisor.storage.run.run_state import has_live_parent, load_run_state
    from supervisor.storage.run.rundir import RunDirectory

    found = []
    for path in RUNS.glob("*/run.json"):
        rundir = RunDirectory(path.parent)
        with contextlib.suppress(RunDirectoryError, OSError):
            run = load_run_state(rundir)
            is_over = run.state == "completed" or has_live_parent(run)
            if not (to_resume and (is_over or living_holder(rundir))):
                found.append((run.started_at, path.parent))
    if not found:
        which = "no run that can be continued" if to_resume else "no run"
        raise UsageError(
            f"{RUNS}: {which}: name one, see `supervisor list`, or start one with `supervisor run`"
        )
    newest = max(found)[1]
    can = " that can be continued" if to_resume else ""
    print(f"supervisor: {newest} (the newest run{can})", file=sys.stderr, flush=True)
    return newest


def open_run(path: Path) -> RunDirectory:
    """Returns the run directory at `path`.

    Raises:
        RunDirectoryError: there is none.
    """
    from supervisor.storage.run.rundir import RunDirectory

    if not (path / "run.json").is_file():
        missing = "is a file" if path.exists() else "no such folder"
        what = "holds no run.json" if path.is_dir() else missing
        raise RunDirectoryError(
            f"{path}: {what}: give the folder that `supervisor run` printed, or see "
            "`supervisor list`"
        )
    return RunDirectory(path)
