"""Logs that a replay writes again, where its values may not be those of the recorded run."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import IO, Any

from supervisor.storage.run.kept_versions import COPIED_BYTES
from supervisor.storage.run.set_aside import SetAside


class RewrittenTexts:
    """Gives a log the lines back that were on the disk, in place of those that a replay wrote.

    For a replay that executes its first step: what hooks fill is of that step, and so would be what
    the script logs of it. Only for files that are opened once and still open at the target: others
    are written as a whole, and hold what came after the checkpoint.

    Args:
        aside: has the files of the recorded run.
    """

    def __init__(self, aside: SetAside) -> None:
        self._aside = aside
        self._files: dict[str, weakref.ref[IO[Any]] | None] = {}

    def opened(self, path: str, file: IO[Any]) -> None:
        """The replay has opened a text from its start."""
        name = os.path.abspath(path)
        self._files[name] = None if name in self._files else weakref.ref(file)

    def restore(self) -> None:
        """Called at the target, while the files of the recorded run stand aside.

        Raises:
            OSError: a file could not be read or written.
        """
        for name, reference in self._files.items():
            file = None if reference is None else reference()
            old = self._aside.stored.get(name)
            if file is None or file.closed or old is None:
                continue
            file.flush()
            if max(os.path.getsize(old), os.path.getsize(name)) <= COPIED_BYTES:
                _write(file.fileno(), _with_lines(Path(name).read_bytes(), Path(old).read_bytes()))


def _with_lines(replayed: bytes, recorded: bytes) -> bytes:
    """Returns as many lines as `replayed` has, those that `recorded` has whole from there."""
    lines, known = replayed.split(b"\n"), recorded.split(b"\n")
    count = min(len(lines), len(known)) - 1
    return b"\n".join([*known[:count], *lines[count:]])


def _write(descriptor: int, content: bytes) -> None:
    """Replaces what is in a file, of which the script goes on with the end."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.ftruncate(descriptor, len(content))
