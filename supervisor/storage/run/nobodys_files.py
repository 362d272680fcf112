"""Files that are not results of the script."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable

_TRIAL = re.compile(r"[a-z0-9_]{8}")
"""Name of the file with which Python tests whether it can write in the temporary folder."""

_TEMPORARY = os.environ.get("TMPDIR", "/tmp").rstrip("/")


def is_nobodys(
    name: str, root: str, holds_results: Callable[[str], bool] = lambda folder: False
) -> bool:
    """Whether a file is temporary, hidden, a device, or in the run directory.

    A hidden file beside results is a part of them (the ``.metadata`` of a checkpoint of torch's),
    but for those in the working folder.

    Args:
        name: absolute path of a file.
        root: absolute path of the run directory.
        holds_results: whether the script has written something into a folder.

    Raises:
        OSError: the working directory is gone.
    """
    if name == root or name.startswith((root + os.sep, "/dev/", "/proc/")):
        return True
    here = os.getcwd() + os.sep
    own = name[len(here) :] if name.startswith(here) else name
    folder, last = os.path.split(name)
    if f"{os.sep}." in os.path.dirname(own) or own.startswith("."):
        return True
    if last.startswith(".") and not holds_results(folder):
        return True
    temporary = tempfile.tempdir or _TEMPORARY  # not `gettempdir`: it waits for a lock
    return folder == temporary and (
        last.startswith(tempfile.template) or _TRIAL.fullmatch(last) is not None
    )
