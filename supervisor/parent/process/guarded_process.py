"""A worker process and its guardian, as the parent sees them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_GUARDIAN = Path(__file__).with_name("guardian.py")
_LEAVES_S = 10.0
"""Longer than the guardian takes to end what is left."""


class GuardedProcess:
    """The process that `guardian.py` starts: its number, its end, and its descendants.

    Attributes:
        pid: of the process itself.
        guardian_pid: of the guardian, the ancestor of all its descendants.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        stdin: int | None = None,
    ) -> None:
        """Starts it in a session of its own.

        Raises:
            OSError: the interpreter cannot be started.
        """
        self._told = b""
        self._returncode: int | None = None
        self._status, status = os.pipe()
        control, self._control = os.pipe()
        line = [sys.executable, "-I", "-S", str(_GUARDIAN), str(status), str(control), *command]
        try:
            self._guardian = subprocess.Popen(
                line,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=env,
                pass_fds=(status, control),
                start_new_session=True,
            )
        except OSError:
            self._close()
            raise
        finally:
            os.close(status)
            os.close(control)
        self.guardian_pid = self._guardian.pid
        self.pid = self._first_word()
        self._pidfd = _open_pidfd(self.pid)

    @property
    def returncode(self) -> int | None:
        """None while it lives; negative after a signal."""
        return self._returncode

    def wait(self, timeout_s: float | None = None) -> bool:
        """Returns whether it has ended, after at most `timeout_s`; None: as long as it takes."""
        while self._returncode is None and self._is_readable(timeout_s):
            self._take_in()
        return self._returncode is not None

    def send(self, signum: int) -> bool:
        """Sends to the process alone; returns False if it has ended."""
        if self.wait(0.0):
            return False
        try:
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, signum)
            else:
                os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        return True

    def dismiss(self, *, keep: bool) -> None:
        """Ends the guardian and, unless `keep`, all descendants of the process."""
        if keep:
            with contextlib.suppress(OSError):
                os.write(self._control, b"keep\n")
        self._close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guardian.wait(_LEAVES_S)

    def _first_word(self) -> int:
        while b"\n" not in self._told:
            data = os.read(self._status, 4096)
            if not data:
                self.dismiss(keep=False)
                raise OSError(0, "the worker's guardian could not be started")
            self._told += data
        line, _, self._told = self._told.partition(b"\n")
        return int(line.partition(b" ")[2])

    def _is_readable(self, timeout_s: float | None) -> bool:
        waiting = select.poll()  # `select.select` knows no descriptors above 1,023
        waiting.register(self._status, select.POLLIN)
        return bool(waiting.poll(None if timeout_s is None else 1000.0 * timeout_s))

    def _take_in(self) -> None:
        data = os.read(self._status, 4096)
        self._told += data
        *lines, self._told = self._told.split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"ended":
                self._returncode = int(number)
        if not data and self._returncode is None:
            # The guardian was killed, and the kernel kills the worker with it.
            self._returncode = -signal.SIGKILL

    def _close(self) -> None:
        for fd in (self._status, self._control):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._status = self._control = -1
        if getattr(self, "_pidfd", -1) >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _open_pidfd(pid: int) -> int:
    """Returns a descriptor that stands for this process alone, were its number given out again."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or one older than 5.3, or forbidden
        return -1
