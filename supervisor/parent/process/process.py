"""One worker process: starts in its own session, ends with all its descendants.

A worker process and its subreaper, as the parent sees them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from supervisor.own_process import command, worker_environment
from supervisor.parent.process.family import Family
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.process.signals import to_send
from supervisor.parent.terminal.output import OutputPump
from supervisor.ranks import FIRST_RANK

_SUBREAPER = Path(__file__).with_name("subreaper.py")
_LEAVES_S = 10.0
"""Longer than the subreaper takes to end what is left."""


class GuardedProcess:
    """The process that `subreaper.py` starts: its number, its end, and its descendants.

    Attributes:
        pid: of the process itself.
        subreaper_pid: of the subreaper, the ancestor of all its descendants.
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
        line = [sys.executable, "-I", "-S", str(_SUBREAPER), str(status), str(control), *command]
        try:
            self._subreaper = subprocess.Popen(
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
        self.subreaper_pid = self._subreaper.pid
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
        """Ends the subreaper and, unless `keep`, all descendants of the process."""
        if keep:
            with contextlib.suppress(OSError):
                os.write(self._control, b"keep\n")
        self._close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._subreaper.wait(_LEAVES_S)

    def _first_word(self) -> int:
        while b"\n" not in self._told:
            data = os.read(self._status, 4096)
            if not data:
                self.dismiss(keep=False)
                raise OSError(0, "the worker's subreaper could not be started")
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
            # The subreaper was killed, and the kernel kills the worker with it.
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


KILL_S = 10.0
"""For what SIGKILL ends; what it does not end is left behind."""
DEFAULT_COMMAND = command("supervisor.worker.__main__")


class Processes(Protocol):
    """The workers of one attempt: one, or the ranks that the agent has started."""

    family: Family

    @property
    def signals_sent(self) -> Mapping[int, list[int]]:
        """Rank → the signals that it got from us."""
        ...

    @property
    def lost(self) -> Mapping[int, str]:
        """Rank → what became of its node, for those that ended because that is gone."""
        ...

    @property
    def codes(self) -> Mapping[int, int]: ...

    def wait(self, timeout_s: float) -> bool: ...

    def send(self, signum: int, *, but: Collection[int] = ()) -> None:
        """Sends a signal to each rank that lives, to none of `but`, and to nothing that they have
        started. A rank that would only be killed by it gets another one, see `to_send`."""
        ...

    def resize(self) -> None: ...

    def stop(self, *, keep_others: bool = False) -> tuple[str, ...]: ...


class WorkerProcess:
    """One rank of one attempt.

    In its own session signals such as the terminal's Ctrl-C reach it only through us. Its subreaper
    (`subreaper.py`) ends it and all its descendants when we are gone.
    """

    lost: Mapping[int, str] = {}

    def __init__(
        self,
        spec: LaunchSpec,
        attempt: int,
        rank: int,
        output: OutputPump,
        *,
        worker: Sequence[str] = DEFAULT_COMMAND,
        handover: Sequence[str] = (),
        given: Sequence[str] = (),
    ) -> None:
        """Starts it.

        Raises:
            OSError: the interpreter cannot be started.
        """
        self._output = output
        self._process = GuardedProcess(
            worker_command(spec, attempt, rank, worker, handover, given),
            stdout=output.stdout,
            stderr=output.stderr,
            env=worker_environment(),
        )
        self.signals_sent: dict[int, list[int]] = {FIRST_RANK: []}
        self.family = Family(self.pid, self._process.subreaper_pid)
        output.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it lives; negative after a signal."""
        self._process.wait(0.0)
        return self._process.returncode

    @property
    def ranks(self) -> tuple[int, ...]:
        return (FIRST_RANK,)

    @property
    def codes(self) -> Mapping[int, int]:
        """Rank → how it ended, if it has; negative after a signal."""
        code = self.returncode
        return {} if code is None else {FIRST_RANK: code}

    def wait(self, timeout_s: float) -> bool:
        """Returns whether it has ended, after at most `timeout_s`."""
        return self._process.wait(timeout_s)

    def send(self, signum: int, *, but: Collection[int] = ()) -> None:
        sent = to_send(self.pid, signum)
        if sent is not None and not but and self._process.send(sent):
            self.signals_sent[FIRST_RANK].append(sent)

    def resize(self) -> None:
        """Tells the worker that the user's terminal was resized."""
        self._output.copy_window_size()
        self._process.send(signal.SIGWINCH)

    def stop(self, *, keep_others: bool = False) -> tuple[str, ...]:
        """Kills it if it lives and ends its descendants, unless `keep_others`; returns which."""
        if not self._process.wait(0.0):
            self.family.look()
            self.send(signal.SIGKILL)
            self._process.wait(KILL_S)
        left = () if keep_others else self.family.stop()
        self._process.dismiss(keep=keep_others)
        self._output.finish()
        return left


def worker_command(
    spec: LaunchSpec,
    attempt: int,
    rank: int,
    worker: Sequence[str],
    handover: Sequence[str] = (),
    given: Sequence[str] = (),
) -> list[str]:
    """Returns the whole command line of a worker; `handover`: the paths of a `Handover`; `given`:
    those of a `StandardInput`."""
    line = [
        *worker,
        "--run-dir",
        str(spec.run_dir.absolute()),
        "--attempt",
        str(attempt),
        "--rank",
        str(rank),
    ]
    if handover:
        line += ["--handover", ",".join(handover)]
    if given:
        line += ["--input", ",".join(given)]
    line += ["--kind", spec.kind, "--target", spec.target]
    if spec.function is not None:
        line += ["--function", spec.function]
    return [*line, "--", *spec.worker_arguments(attempt)]
