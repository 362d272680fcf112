"""Files that the script writes as a whole in its training, and not as a text: a replay cannot."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Mapping
from threading import get_ident

from supervisor.storage.run.file_names import absolute

FILES = 2_000
"""The newest that are looked at; which of them exist is part of each checkpoint."""


class WholeFiles:
    """Which of them existed at a checkpoint, of what size and time; compared on arrival.

    Args:
        root: of the run directory; what our own threads write there is none of the script's.
    """

    def __init__(self, root: str) -> None:
        self._ours = os.path.join(root, "")
        self._written: dict[str, int] = {}
        self._thread = get_ident()

    def wrote(self, path: str) -> None:
        """The script writes `path`, live or in a replay, which may leave it out."""
        name = absolute(path)
        if name.startswith(self._ours):
            return
        self._written.pop(name, None)
        self._written[name] = get_ident()
        if len(self._written) > FILES:
            del self._written[next(iter(self._written))]

    def training_begins(self) -> None:
        """Called before the first forward or update: what was written before is really written in
        a replay, too."""
        self._written.clear()
        self._thread = get_ident()

    @property
    def names(self) -> Collection[str]:
        """All that were written, also those that are gone."""
        return self._written.keys()

    def present(self) -> dict[str, list[int]]:
        """Returns path → size and time of those that exist."""
        found = {}
        for name in list(self._written):
            with contextlib.suppress(OSError):
                looked = os.lstat(name)
                if stat.S_ISREG(looked.st_mode):
                    found[name] = [looked.st_size, looked.st_mtime_ns]
        return found

    def surplus(self, recorded: Mapping[str, list[int]]) -> list[str]:
        """Returns what this replay has written that did not exist in the recorded run."""
        if len(self._written) >= FILES:
            return []
        return [name for name in self.present() if name not in recorded]

    def is_by_itself(self, name: str) -> bool:
        """Whether the thread that trains wrote a file, which so was done with it."""
        return self._written.get(name) == self._thread

    def wrote_all(self, recorded: Mapping[str, list[int]]) -> bool:
        """Whether this replay came to write all that existed in the recorded run."""
        return recorded.keys() <= self._written.keys()


def is_as_recorded(path: str, recorded: list[int]) -> bool:
    """Whether a file is the one that was there at the checkpoint."""
    try:
        looked = os.lstat(path)
    except OSError:
        return False
    return [looked.st_size, looked.st_mtime_ns] == list(recorded)
