"""Opens the run directory that a command is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.errors import RunDirectoryError

if TYPE_CHECKING:
    from supervisor.storage.run.rundir import RunDirectory


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
