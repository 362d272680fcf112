"""Files into which the terminals of a run's parents go (`supervisor run ... > log.txt`).

What stands there was printed: it is no state of the script, though it changes while it runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path

from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.rundir import RunDirectory


def note_terminal(rundir: RunDirectory) -> None:
    """Called by each parent of a run as it begins, on every node; a refusing disk is ignored."""
    with contextlib.suppress(OSError):
        found = sorted({path for number in (1, 2) if (path := _file_of(number))})
        if found:
            name = hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
            write_private(rundir.make(rundir.terminals) / f"{name}.json", json.dumps(found))


def terminal_files(root: str) -> set[str]:
    """Returns the real paths of those of all parents that the run has had.

    Args:
        root: path of the run directory.
    """
    found: set[str] = set()
    for path in RunDirectory(Path(root)).terminals.glob("*.json"):
        with contextlib.suppress(OSError, ValueError):
            found.update(map(str, json.loads(path.read_text())))
    return found


def _file_of(number: int) -> str:
    """Returns the regular file that a descriptor of this process is; empty if it is none."""
    try:
        if stat.S_ISREG(os.fstat(number).st_mode):
            return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        pass
    return ""
