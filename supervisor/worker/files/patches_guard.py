"""Writes outside of one folder are refused: for a trial of a script in a copy of its folder.

What C code of a library opens is not seen, except for `torch.save`.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from supervisor.own_process import WRITES_BELOW

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(
    {
        "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink",
        "os.chmod", "shutil.rmtree", "shutil.move",
    }
)  # fmt: skip


def guard_writes(run: Path) -> None:
    """Begins, for the rest of this process's life, where the environment asks for it.

    Args:
        run: the run directory, which may be written, as may temporary files and caches.
    """
    given = os.environ.get(WRITES_BELOW)
    if not given:
        return
    folder, _, told = given.partition(os.pathsep)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    guard = _Guard([folder, str(run), tempfile.gettempdir(), caches, "/dev", "/proc"], told)
    sys.addaudithook(guard.heard)
    save = torch.save

    @functools.wraps(save)
    def guarded(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        guard.check(f)
        return save(obj, f, *args, **kwargs)

    torch.save = guarded


class _Guard:
    def __init__(self, allowed: Sequence[str], told: str) -> None:
        self._allowed = tuple(os.path.join(os.path.realpath(path), "") for path in allowed)
        self._told = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def heard(self, event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = values
            if isinstance(flags, int) and flags & _WRITES:
                self.check(path)
        elif event in _CHANGES:
            for value in values[:2]:
                self.check(value)

    def check(self, path: Any) -> None:
        """Raises PermissionError for a path that is not below an allowed folder."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.path.realpath(os.fsdecode(path))
        if os.path.join(name, "").startswith(self._allowed):
            return
        if os.sep + "__pycache__" + os.sep not in name:
            os.write(self._told, f"{name}\n".encode())
        raise PermissionError(errno.EACCES, "supervisor doctor: not in the copied folder", name)
