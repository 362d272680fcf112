"""Tells the user's own code from Python's and that of installed packages."""

from __future__ import annotations

import contextlib
import functools
import os
import site
import sys
import sysconfig
from pathlib import Path

import torch

_LIBRARY_FOLDERS = (
    *(folder for folder in sysconfig.get_paths().values() if folder != sys.prefix),
    *site.getsitepackages(),  # those of the system under a virtual environment that sees them
    site.getusersitepackages(),
    str(Path(torch.__file__).parents[1]),
)


def is_library_file(path: str) -> bool:
    """Whether the file at `path` belongs to Python or to an installed package.

    Packages may also be installed beside the script (``pip install --target``).
    """
    if path.startswith(_LIBRARY_FOLDERS):
        return True
    for folder in sys.path:
        top = folder + os.sep
        if folder and path.startswith(top):
            name = path[len(top) :].partition(os.sep)[0]
            if name in _installed_in(folder):
                return True
    return False


@functools.cache
def _installed_in(folder: str) -> frozenset[str]:
    """Returns the top-level names of all files that packages have installed in a folder."""
    found: set[str] = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        with contextlib.suppress(OSError):
            lines = record.read_text(errors="replace").splitlines()
            found.update(line.partition(",")[0].partition("/")[0] for line in lines)
    return frozenset(found)


def is_users_class(kind: type) -> bool:
    """Whether `kind` was defined in the user's own code, not in Python's or a package's folder."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__dict__", {}).get("__file__")
    if kind.__module__ == "__main__":
        return True
    return file is not None and not is_library_file(file)
