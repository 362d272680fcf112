"""Files without a name, for what a replay writes anew."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from typing import IO, Any

_os_open, _unlink = os.open, os.unlink  # before they are patched


class NamelessFiles:
    """Stand in for files that exist; one that is still open at the target becomes the file."""

    def __init__(self) -> None:
        self._open: list[tuple[IO[bytes], str]] = []

    def open(self, name: str, mode: str, open_: Callable[..., Any]) -> Any:
        """Opens one in the folder of `name`, for which it stands."""
        file = open_(_nameless(os.path.dirname(name)), mode.replace("x", "w"))
        self._open.append((file, name))
        return file

    def still_open(self) -> set[str]:
        """Returns the names for which one is open."""
        self._open = [(file, name) for file, name in self._open if not file.closed]
        return {name for _, name in self._open}

    def become_files(self) -> None:
        """What was written so far becomes the file's, and the script's objects go on in it."""
        self.still_open()
        for file, name in self._open:
            file.flush()
            descriptor, position = file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR)
            real = _os_open(name, os.O_RDWR | os.O_TRUNC)
            with os.fdopen(os.dup(descriptor), "rb") as content, os.fdopen(os.dup(real), "wb") as f:
                content.seek(0)
                shutil.copyfileobj(content, f)
            os.lseek(real, position, os.SEEK_SET)
            os.dup2(real, descriptor, inheritable=False)
            os.close(real)


def _nameless(folder: str) -> int:
    try:
        return _os_open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:  # not every file system can
        name = os.path.join(folder, f".{secrets.token_hex(8)}")
        descriptor = _os_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        _unlink(name)
        return descriptor
