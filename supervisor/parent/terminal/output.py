"""Passes a worker's output through to the user, unchanged and at once, and keeps it in a log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import selectors
import struct
import termios
import threading
import time
import tty
from pathlib import Path

from supervisor.parent.terminal.attempt_log import AttemptLog
from supervisor.parent.terminal.open_line import OpenLine

_CHUNK = 65536
_WINDOW_SIZE = struct.Struct("HHHH")
_DRAIN_S = 0.2


class OutputPump:
    """Carries standard output and standard error of one worker.

    If the user's stream is a terminal the worker gets a pseudo-terminal, so that progress bars and
    colours look as without us, otherwise a pipe. Streams to one terminal stay one, in order.
    """

    def __init__(
        self,
        log: AttemptLog,
        *,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        line: OpenLine | None = None,
    ) -> None:
        """`line`: told of what the script writes to the place of our own lines."""
        self._line = line or OpenLine()
        self._beside_ours = {fd for fd in (stdout_fd, stderr_fd) if self._line.shares(fd)}
        self._log = log
        self._terminals: list[tuple[int, int]] = []
        self._routes: dict[int, int] = {}
        self._worker_ends: list[int] = []
        self._deaf: set[int] = set()
        self._writing_since_s: float | None = None
        self._ended = False
        self.stdout = self._open(stdout_fd)
        if _same_terminal(stdout_fd, stderr_fd):
            self.stderr = self.stdout
        else:
            self.stderr = self._open(stderr_fd)
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)

    @property
    def is_blocked(self) -> bool:
        """Whether the user's side has taken nothing for a second (a paused terminal)."""
        since_s = self._writing_since_s
        return since_s is not None and time.monotonic() - since_s > 1.0

    def start(self, *, keep_open: bool = False) -> None:
        """Begins to carry; called when the worker has its ends.

        Args:
            keep_open: the worker opens them by name, and may do so later.
        """
        if not keep_open:
            for fd in set(self._worker_ends):
                os.close(fd)
            self._worker_ends = []
        self._thread.start()

    def copy_window_size(self) -> None:
        """Gives the pseudo-terminals the size of the real ones."""
        for ours, real in self._terminals:
            _copy_window_size(real, ours)

    def finish(self, timeout_s: float = 5.0) -> None:
        """Passes on the rest of an ended worker's output, then closes."""
        self._ended = True
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return  # blocked on the user's side; a daemon thread, and its files stay open
        for fd in {*self._routes, *self._worker_ends}:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._log.close()

    def _open(self, real: int) -> int:
        """Returns the worker's end of a new route to `real`."""
        if _is_terminal(real):
            ours, theirs = os.openpty()
            tty.setraw(theirs)
            _copy_window_size(real, ours)
            self._terminals.append((ours, real))
        else:
            ours, theirs = os.pipe()
        self._routes[ours] = real
        self._worker_ends.append(theirs)
        return theirs

    def _pump(self) -> None:
        with selectors.DefaultSelector() as selector:
            for fd in self._routes:
                selector.register(fd, selectors.EVENT_READ)
            while selector.get_map():
                ended = self._ended
                ready = selector.select(_DRAIN_S)
                if ended and not ready:
                    return
                for key, _ in ready:
                    data = _read(key.fd)
                    if data:
                        self._carry(data, self._routes[key.fd])
                    else:
                        selector.unregister(key.fd)

    def _carry(self, data: bytes, real: int) -> None:
        # A full disk or a reader that left must cost the log or the screen, never the training.
        self._log.write(data)
        if real in self._deaf:
            return
        self._writing_since_s = time.monotonic()
        try:
            if real in self._beside_ours:
                with self._line.lock:
                    self._line.saw(data)
                    _write_all(real, data)
            else:
                _write_all(real, data)
        except OSError:
            self._deaf.add(real)
        finally:
            self._writing_since_s = None


def read_tail(log: Path, limit: int = 4096) -> str:
    """Returns the end of a log as text, empty if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            # Somebody who shares the terminal made it non-blocking; waiting is all that is asked.
            select.select([], [fd], [], 1.0)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except OSError:
        return b""  # the last holder of a pseudo-terminal closed it: EIO


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _same_terminal(one: int, other: int) -> bool:
    if not (_is_terminal(one) and _is_terminal(other)):
        return False
    return os.fstat(one).st_rdev == os.fstat(other).st_rdev


def _copy_window_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(_WINDOW_SIZE.size))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
