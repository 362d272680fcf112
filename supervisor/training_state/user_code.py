"""Whether code is the user's own, or Python's or an installed package's."""

from __future__ import annotations

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
    """Whether the file at `path` belongs to Python or to an installed package."""
    return path.startswith(_LIBRARY_FOLDERS)


def is_users_class(kind: type) -> bool:
    """Whether `kind` was defined in the user's own code, not in Python's or a package's folder."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ == "__main__":
        return True
    return file is not None and not is_library_file(file)
