"""The worker's half of standard input that comes by a pipe: who reads it reads what is kept.

Until the script first reads, descriptor 0 is the user's own pipe, and nothing is taken from it: a
shell that reads a list beside us keeps its list. Then the parent's pipe takes its place, for the
script, what C code reads, and what the script starts.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from typing import Any

_STDIN = 0
_NAMES = (_STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


class KeptInput:
    """Changes descriptor 0 at the first read, in a child that the script forks as well."""

    def __init__(self, relay: str, asks: str) -> None:
        """`relay`: path of the parent's pipe; `asks`: of the one by which it is asked to begin."""
        self._relay, self._asks = relay, asks
        self._has_begun = False

    def install(self, *, now: bool) -> None:
        """Called before the script begins; `now`: its input begins with what is kept."""
        if sys.stdin is not None:
            raw: Any = FileIO(self)
            raw.name = "<stdin>"
            stream: Any = io.TextIOWrapper(
                io.BufferedReader(raw), sys.stdin.encoding, sys.stdin.errors, newline="\n"
            )
            stream.mode = "r"
            sys.stdin = stream
            sys.__dict__["__stdin__"] = stream
        if now:
            self.begin()
        read = os.read

        @functools.wraps(read)
        def reads(fd: int, length: int, /) -> bytes:
            if fd == _STDIN:
                self.begin()
            return read(fd, length)

        os.read = reads
        sys.addaudithook(self._heard)

    def begin(self) -> None:
        """Called before a read; the parent begins to read ahead."""
        if self._has_begun:
            return
        self._has_begun = True
        with contextlib.suppress(OSError):  # the parent is gone, and this process goes, too
            relay = os.open(self._relay, os.O_RDONLY)
            os.dup2(relay, _STDIN)
            os.close(relay)
            asks = os.open(self._asks, os.O_WRONLY)
            os.write(asks, b".")
            os.close(asks)

    def _heard(self, event: str, arguments: Any) -> None:
        if event == "open" and not self._has_begun and arguments[0] in _NAMES:
            self.begin()


class FileIO(io.FileIO):
    """Descriptor 0, as Python opens it, down to the name of its class."""

    __module__ = "_io"

    def __init__(self, kept: KeptInput) -> None:
        super().__init__(_STDIN, "rb", closefd=False)
        self._kept = kept

    def readinto(self, buffer: Any, /) -> Any:
        self._kept.begin()
        return super().readinto(buffer)

    def readall(self) -> Any:
        self._kept.begin()
        return super().readall()
