"""Files that are called otherwise in each process: of a time, a process, a temporary folder."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

_V = TypeVar("_V")


class OtherNames:
    """Says what a file of the recorded run is called in this one.

    Args:
        texts: those of the script that differ by nature, as they were and as they are.
        own: files that this process writes under the names of the recorded run.
    """

    def __init__(self, texts: Iterable[tuple[str, str]], own: Collection[str] = ()) -> None:
        self._texts = sorted(set(texts), key=lambda pair: len(pair[0]), reverse=True)
        self._own = own

    def of(self, path: str) -> str:
        """Returns a file's or folder's path in this process; the same where it is none other."""
        if path in self._own:
            return path
        other = path
        for old, new in self._texts:
            if old.isdigit():  # of a process: 1234 is no part of 12345
                other = new.join(re.split(rf"(?<!\d){old}(?!\d)", other))
            else:
                other = other.replace(old, new)
        return other if os.path.isdir(os.path.dirname(other)) else path

    def keys(self, recorded: Mapping[str, _V]) -> dict[str, _V]:
        """Returns the same by the names of this process; what the recorded run noted of a file
        counts for more than what this one did."""
        found: dict[str, _V] = {}
        for path, value in recorded.items():
            other = self.of(path)
            if other != path or path not in found:
                found[other] = value
        return found

    def __bool__(self) -> bool:
        return bool(self._texts)
