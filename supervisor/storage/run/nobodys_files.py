"""Files that are not results of the script."""

from __future__ import annotations

import os
import re
import tempfile

_TRIAL = re.compile(r"[a-z0-9_]{8}")
"""Name of the file with which Python tests whether it can write in the temporary folder."""

_TEMPORARY = os.environ.get("TMPDIR", "/tmp").rstrip("/")


def is_nobodys(name: str, root: str) -> bool:
    """Whether a file is temporary, hidden, a device, or in the run directory.

    Args:
        name: absolute path of a file.
        root: absolute path of the run directory.

    Raises:
        OSError: the working directory is gone.
    """
    if name == root or name.startswith((root + os.sep, "/dev/", "/proc/")):
        return True
    here = os.getcwd() + os.sep
    own = name[len(here) :] if name.startswith(here) else name
    if f"{os.sep}." in own or own.startswith("."):
        return True
    folder, last = os.path.split(name)
    temporary = tempfile.tempdir or _TEMPORARY  # not `gettempdir`: it waits for a lock
    return folder == temporary and (
        last.startswith(tempfile.template) or _TRIAL.fullmatch(last) is not None
    )
