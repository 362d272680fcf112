"""The worker's half of standard input that comes by a pipe: who reads it reads what is kept.

Until the script first reads, descriptor 0 is the user's own pipe, and nothing is taken from it: a
shell that reads a list beside us keeps its list. Then the parent's pipe takes its place, for the
script, what C code reads, and what the script starts.

What a person answers at a terminal is given again in a replay.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import sys
from typing import Any

from supervisor.errors import UsageError
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.outside_draws.patches_draws import replace_method, watch_opens

_STDIN = 0
_NAMES = (_STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_READS = ("read", "readall", "readinto")


class KeptInput:
    """Changes descriptor 0 at the first read, in a child that the script forks as well.

    Args:
        relay: path of the parent's pipe; empty for one of several ranks, which may not read.
        asks: of the pipe by which the parent is asked to begin.
    """

    def __init__(self, relay: str, asks: str) -> None:
        self._relay, self._asks = relay, asks
        self._has_begun = False
        self._originals: dict[str, Any] = {}

    def install(self, *, now: bool) -> None:
        """Called before the script begins; `now`: its input begins with what is kept."""
        if now:
            self.start()
            return
        file = getattr(getattr(sys.stdin, "buffer", None), "raw", None)
        for name in _READS if file is not None else ():
            self._watch(name, file)
        read = os.read

        @functools.wraps(read)
        def reads(fd: int, length: int, /) -> bytes:
            if fd == _STDIN:
                self.start()
            return read(fd, length)

        os.read = reads
        watch_opens(dict.fromkeys(_NAMES, self.start))

    def start(self) -> None:
        """Called before a read; the parent begins to read ahead.

        Raises:
            UsageError: each rank would have read a part of it, by chance.
        """
        if self._has_begun:
            return
        if not self._relay:
            raise UsageError(
                "standard input: it came by a pipe or from a file, which several ranks cannot "
                "share: have the script open the file by its name"
            )
        self._has_begun = True
        for name, original in self._originals.items():
            replace_method(io.FileIO, name, original)
        with contextlib.suppress(OSError):  # the parent is gone, and this process goes, too
            relay = os.open(self._relay, os.O_RDONLY)
            os.dup2(relay, _STDIN)
            os.close(relay)
            asks = os.open(self._asks, os.O_WRONLY)
            os.write(asks, b".")
            os.close(asks)

    def _watch(self, name: str, file: Any) -> None:
        """The stream stays Python's own, down to its type; until it is read, `FileIO` asks."""
        original = self._originals[name] = io.FileIO.__dict__[name]

        def reads(one: Any, /, *args: Any) -> Any:
            if one is file:
                self.start()
            return original(one, *args)

        replace_method(io.FileIO, name, reads)


def keep_answers() -> None:
    """Called before the script begins, where its input is a terminal."""
    ask = builtins.input

    @functools.wraps(ask)
    def asks(*prompt: Any) -> str:
        return OUTSIDE.draw("input()", lambda: ask(*prompt).encode(errors=_LOSSLESS)).decode(
            errors=_LOSSLESS
        )

    builtins.input = asks


_LOSSLESS = "surrogateescape"
