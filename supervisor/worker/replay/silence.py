"""No output while steps are replayed: it was all said before."""

from __future__ import annotations

import os
import sys


class Silence:
    """Sends file descriptors 1 and 2 to nowhere between `begin` and `end`."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, int]] = []

    def begin(self) -> None:
        self._flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            self._kept.append((descriptor, os.dup(descriptor)))
            os.dup2(nowhere, descriptor)
        os.close(nowhere)

    def end(self) -> None:
        """May be called again; then it does nothing."""
        if not self._kept:
            return
        self._flush()
        for descriptor, kept in self._kept:
            os.dup2(kept, descriptor)
            os.close(kept)
        self._kept.clear()

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue  # closed by the script
