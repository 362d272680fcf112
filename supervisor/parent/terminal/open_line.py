"""Knows whether the terminal's cursor is in the middle of a line of the script."""

from __future__ import annotations

import os
import threading

_NEW_LINE = "\r\n\x1b[J"
"""On a terminal: a line of our own, and nothing left on it of what a progress bar drew below."""


class OpenLine:
    """Keeps our lines and the script's output apart where both go to the same place (`fd`).

    Writers hold `lock`, and report with `saw` what they wrote.
    """

    def __init__(self, fd: int = 2) -> None:
        self.lock = threading.Lock()
        self._fd = fd
        self._is_open = False

    def shares(self, fd: int) -> bool:
        """Whether what is written to `fd` comes out where our lines do."""
        try:
            one, other = os.fstat(fd), os.fstat(self._fd)
            if os.isatty(fd) and os.isatty(self._fd):
                return one.st_rdev == other.st_rdev
        except OSError:
            return False
        return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)

    def saw(self, data: bytes) -> None:
        """Notes output of the script."""
        if data:
            self._is_open = not data.endswith(b"\n")

    def typed(self) -> None:
        """Somebody typed into the terminal (Ctrl-C): it shows ``^C`` where the cursor stood.

        Called within a signal's handler, which may not wait for `lock`.
        """
        if os.isatty(self._fd):
            self._is_open = True

    def beginning(self) -> str:
        """Returns what our next line must begin with; after it no line is open."""
        if not self._is_open:
            return ""
        self._is_open = False
        return _NEW_LINE if os.isatty(self._fd) else "\n"
