"""Files that a fast-forward must not write: their content would be that of an untrained model."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any

from supervisor.storage.run.set_aside import SetAside, remove

_unlink = os.unlink  # before it is patched


class ReplayedFiles:
    """Keeps what lies on the disk, which is at least as new, from what a replay would write.

    What it writes into a file that exists goes to a nameless file of the same folder. A file that
    is still open at the target belongs to the script's future: there, that content becomes the
    file's, and the script's object goes on writing into it. What it deletes is put aside, and comes
    back when the replay would write it again.

    Args:
        aside: keeps the list of all this, for the next start if this one does not arrive.
    """

    def __init__(self, aside: SetAside) -> None:
        self._aside = aside
        self._open: list[tuple[IO[bytes], str]] = []
        self._created: set[str] = set()
        self._kept: set[str] = set()
        self._began = time.time()

    def keeps(self, path: str | os.PathLike[str]) -> bool:
        """Asked before a whole file is written: whether to leave that out."""
        name = os.path.abspath(os.fspath(path))
        self._bring_back(name)
        if _has_content(name) and name not in self._created:
            self._kept.add(name)
            return True
        self._creates(name)
        return False

    def opened(self, path: str | os.PathLike[str], mode: str, open_: Callable[..., Any]) -> Any:
        """Opens a binary file for writing from its start; None if the script's own call should."""
        name = os.path.abspath(os.fspath(path))
        self._forget_closed()
        self._bring_back(name)
        if not _is_regular(name):
            if not os.path.exists(name):
                self._creates(name)
            return None
        if name in self._created or not _has_content(name):  # `mkstemp` made it
            self._creates(name)
            return None
        self._kept.add(name)
        file = open_(_nameless(os.path.dirname(name)), mode)
        self._open.append((file, name))
        return file

    def renamed(self, source: str, target: str) -> bool:
        """Asked before a rename: whether to leave it out, because the newer `target` would go."""
        source, target = os.path.abspath(source), os.path.abspath(target)
        if source not in self._created and source not in self._kept:
            return False
        self._bring_back(target)
        if not _is_regular(target) or target in self._created:
            self._creates(target)
            return False
        self._kept.add(target)
        if source in self._created:
            _unlink(source)
        return True

    def linked(self, source: str, target: str) -> bool:
        """Asked before a link: whether to leave it out, because `target` was only put aside."""
        source, target = os.path.abspath(source), os.path.abspath(target)
        self._bring_back(target)
        if target in self._kept:
            return True
        if source in self._created or source in self._kept:
            self._creates(target)
        return False

    def removed(self, path: str) -> bool:
        """Asked before a file is deleted: whether that was done, by putting it aside."""
        name = os.path.abspath(path)
        if name in self._created or not _is_regular(name) or not self._aside.move(name):
            return False
        self._kept.discard(name)
        return True

    def cleared(self, path: str) -> bool:
        """Called before a whole folder is deleted: puts aside what was in it before the replay.

        What the replay made itself may go.
        """
        for folder, _, names in os.walk(os.path.abspath(path)):
            for name in (os.path.join(folder, each) for each in names):
                if os.lstat(name).st_mtime < self._began:
                    self.removed(name)
        return False

    def end(self) -> None:
        """The target is reached: files that are still open get their names."""
        self._forget_closed()
        for file, name in self._open:
            file.flush()
            descriptor, position = file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR)
            real = os.open(name, os.O_RDWR | os.O_TRUNC)
            with os.fdopen(os.dup(descriptor), "rb") as content, os.fdopen(os.dup(real), "wb") as f:
                content.seek(0)
                shutil.copyfileobj(content, f)
            os.lseek(real, position, os.SEEK_SET)
            os.dup2(real, descriptor, inheritable=False)
            os.close(real)
        self._open.clear()
        for left in self._aside.arrived().values():
            remove(left)

    def _creates(self, name: str) -> None:
        if name not in self._created:
            self._aside.wrote(name)
            self._created.add(name)

    def _bring_back(self, name: str) -> None:
        if self._aside.bring_back(name):
            self._kept.add(name)

    def _forget_closed(self) -> None:
        self._open = [(file, name) for file, name in self._open if not file.closed]


def _has_content(path: str) -> bool:
    return os.path.exists(path) and (not _is_regular(path) or os.path.getsize(path) > 0)


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def _nameless(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:  # not every file system can
        descriptor, name = tempfile.mkstemp(dir=folder)
        os.unlink(name)
        return descriptor
