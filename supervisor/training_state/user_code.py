"""Tells the user's own code from Python's and that of installed packages, and reads its source."""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import os
import site
import sys
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Any

import torch

_LIBRARY_FOLDERS = (
    *(folder for folder in sysconfig.get_paths().values() if folder != sys.prefix),
    *site.getsitepackages(),  # those of the system under a virtual environment that sees them
    site.getusersitepackages(),
    str(Path(torch.__file__).parents[1]),
)

_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Torch sets it itself as it compiles for the first time."""


def is_library_file(path: str) -> bool:
    """Whether the file at `path` belongs to Python or to an installed package, or is code that
    torch has written itself (`torch.compile`).

    Packages may also be installed beside the script (``pip install --target``).
    """
    if path.startswith(_LIBRARY_FOLDERS):
        return True
    compiled = os.environ.get(_COMPILED)
    if compiled and path.startswith(compiled + os.sep):
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


def source_lines(code: CodeType, variables: dict[str, Any]) -> tuple[list[str], int]:
    """Returns the lines of a function and the number of the first one; of a module, a comprehension
    or a lambda, which are no lines of their own, all lines of the file, and 0.

    `inspect` looks for the file by asking each module for its own: a lazy module would import what
    it stands for.

    Args:
        variables: global ones of the code.

    Raises:
        OSError: the source cannot be had.
        SyntaxError, tokenize.TokenError: it is not this function's any more.
    """
    lines = linecache.getlines(code.co_filename, variables)
    if not lines:
        raise OSError(f"{code.co_filename}: no source")
    if code.co_name.startswith("<"):
        return lines, 0
    return inspect.getblock(lines[code.co_firstlineno - 1 :]), code.co_firstlineno
