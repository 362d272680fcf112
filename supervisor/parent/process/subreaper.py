"""``python -I -S subreaper.py STATUS_FD CONTROL_FD COMMAND...``: stands between parent and worker.

The kernel hands it every orphan of the worker, daemons included, and it ends all of them when the
parent ends, however that happens. It imports nothing of ours, to be small and fast to start.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from typing import NoReturn

_PR_SET_CHILD_SUBREAPER = 36
_TERM_S = 2.0
"""For what a worker's own subprocesses have to write; the worker itself is killed at once."""
_KILL_S = 5.0
_NAP_S = 0.02
# They are meant for parent and worker; here the end of the control pipe alone counts.
_PASSED_OVER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(status: int, control: int, command: list[str]) -> None:
    """Starts the worker, reports its end, and stays until the parent closes the control pipe."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: orphans are looked for
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for fd in (status, control):
        os.set_inheritable(fd, False)
    while (taken := os.open(os.devnull, os.O_RDWR)) <= 2:  # closed for the worker, but not for us
        pass
    os.close(taken)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    everything = signal.valid_signals()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, everything)
    worker = os.fork()
    if worker == 0:
        _become_worker(command, mask)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    for signum in _PASSED_OVER:
        signal.signal(signum, _nothing)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _let_go_of_streams()
    _tell(status, f"pid {worker}")
    keeps = _watch(worker, status, control, woken)
    if not keeps:
        _end_all(worker)


def _become_worker(command: list[str], mask: Iterable[int]) -> NoReturn:
    """In the child: starts a session, restores signals, and executes the worker."""
    try:
        os.environ["SUPERVISOR_PARENT_PID"] = str(os.getppid())
        os.setsid()
        for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, for children too
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"supervisor: error: {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _watch(worker: int, status: int, control: int, woken: int) -> bool:
    """Reaps children until the parent is gone or done; returns whether the rest may live on."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    waiting.register(woken, select.POLLIN)
    while True:
        _collect(worker, status)
        ready = {fd for fd, _ in waiting.poll()}
        if woken in ready:
            os.read(woken, 4096)
        if control in ready:
            return os.read(control, 64) == b"keep\n"


def _collect(worker: int, status: int) -> None:
    """Reaps ended children; reports the worker's end."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, code = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == worker:
                _tell(status, f"ended {os.waitstatus_to_exitcode(code)}")


def _end_all(worker: int) -> None:
    """Kills the worker at once; asks its descendants to end first."""
    _send(worker, signal.SIGKILL)
    _end_others(signal.SIGTERM, _TERM_S)
    _end_others(signal.SIGKILL, _KILL_S)


def _end_others(signum: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    told: set[int] = set()
    while True:
        _collect(0, -1)
        left = _descendants(os.getpid())
        for pid in left - told:
            _send(pid, signum)
        told |= left
        if not left or time.monotonic() >= deadline:
            return
        time.sleep(_NAP_S)


def _descendants(root: int) -> set[int]:
    """Returns all descendants, without zombies that others have to reap."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    words = file.read().rpartition(b")")[2].split()
                if words[0] != b"Z":
                    children.setdefault(int(words[1]), []).append(int(name))
    found: set[int] = set()
    front = [root]
    while front:
        front = [pid for parent in front for pid in children.get(parent, ()) if pid not in found]
        found.update(front)
    return found


def _let_go_of_streams() -> None:
    """Closes the output streams, so that their readers see the end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def _tell(status: int, line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(status, f"{line}\n".encode())


def _send(pid: int, signum: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signum)


def _nothing(signum: int, frame: object) -> None:
    pass


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
