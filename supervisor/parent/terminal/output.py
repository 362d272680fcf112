"""Passes a worker's output through to the user, unchanged and at once, and keeps it in a log.

Knows whether the terminal's cursor is in the middle of a line of the script. The log of an attempt:
all its output, or, where that is too much, its beginning and its end.
"""

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
from typing import IO

from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.files.private_files import make_private, open_private, replace_file

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


_KEPT = 0.25
"""Share of the limit for the beginning, and again for the end. The rest is cut out when the limit
is reached, so a flood is copied half again at most."""
_LINE = 4096
"""Within so many bytes a cut looks for the end of a line."""
_COPIED_BYTES = 1 << 20


class AttemptLog:
    """Appends to a file that stays below `limit` bytes and is whole at any time.

    A line in its middle says how many bytes were left out there.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self._limit = limit
        self._file: IO[bytes] | None = None
        self._size = 0
        self._head = 0
        self._mark = b""
        self._left_out = 0
        self.write(b"")

    def write(self, data: bytes) -> None:
        """Appends `data`; what the disk refuses is kept (`KeptWrites`)."""
        KEPT.append(self, data)

    def append(self, data: bytes) -> None:
        """Appends all of `data` or nothing; for `KeptWrites`.

        Raises:
            OSError: the disk refuses.
        """
        if self._file is None:
            make_private(self.path.parent)
            self._file = open_private(self.path, "ab", buffering=0)
            self._size = os.fstat(self._file.fileno()).st_size
        done = 0
        try:
            while done < len(data):
                done += self._file.write(data[done:])
        except OSError:
            with contextlib.suppress(OSError):  # read-only
                os.ftruncate(self._file.fileno(), self._size)
            raise
        self._size += len(data)
        if self._size > self._limit:
            with contextlib.suppress(OSError):  # tried again with the next line
                self._cut()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # a disk may refuse late; nothing is buffered here
                file.close()

    def _cut(self) -> None:
        """Replaces the file by its beginning, a line that says what is missing, and its end."""
        kept = int(_KEPT * self._limit)
        staged = self.path.with_name(f".{self.path.name}.staged")
        with open(self.path, "rb") as old, open_private(staged, "wb") as new:
            head = self._head or _line_end(old, kept)
            tail = _line_end(old, self._size - kept)
            left_out = self._left_out + tail - head - len(self._mark)
            mark = f"[supervisor: {left_out} bytes of output were left out here]\n".encode()
            _copy(old, new, 0, head)
            new.write(mark)
            _copy(old, new, tail, self._size)
        replace_file(staged, self.path)
        self.close()
        self._file = open_private(self.path, "ab", buffering=0)
        self._size += head + len(mark) - tail
        self._head, self._mark, self._left_out = head, mark, left_out


def _line_end(file: IO[bytes], place: int) -> int:
    """Returns the end of the line at `place`, or `place` where lines are long."""
    file.seek(place)
    return place + file.read(_LINE).find(b"\n") + 1


def _copy(old: IO[bytes], new: IO[bytes], start: int, stop: int) -> None:
    old.seek(start)
    while start < stop:
        data = old.read(min(_COPIED_BYTES, stop - start))
        if not data:
            return
        new.write(data)
        start += len(data)


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
