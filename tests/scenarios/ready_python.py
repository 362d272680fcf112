"""Runs trainings in forks of a process that has torch already: its import costs more than they do.

`ReadyPython` starts that process (`python -m tests.scenarios.ready_python SOCKET`) and asks it for
plain runs. `ready_parent.py` has it fork guardians, in the place of those that the supervisor would
execute; what they guard is a worker as ever, but for the start of its interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from supervisor.own_process import give_back
from supervisor.parent.process import subreaper
from supervisor.worker import __main__ as worker
from supervisor.worker.fork_server import leave
from supervisor.worker.ready_torch import ReadyTorch
from tests.scenarios.ready_parent import ask

ROOT = Path(__file__).parents[2]
WORKER = "supervisor.worker.__main__"


class ReadyPython:
    """Starts the process when it is first asked, and ends it with the tests."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""

    @property
    def address(self) -> str:
        """Of the socket on which it waits."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return f"{self._folder}/socket"

    def run(
        self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[int, str, str]:
        """Runs `script.py` of a folder; returns its exit code and what it printed."""
        with (
            open(os.devnull) as nothing,
            tempfile.TemporaryFile() as output,
            tempfile.TemporaryFile() as errors,
        ):
            streams = [nothing.fileno(), output.fileno(), errors.fileno()]
            answer = ask(
                self.address,
                {
                    "folder": str(folder),
                    "arguments": list(arguments),
                    "environment": dict(environment),
                },
                streams,
            )
            told = b"".join(iter(lambda: answer.recv(64), b""))
            answer.close()
            output.seek(0)
            errors.seek(0)
            return int(told), output.read().decode(), errors.read().decode()

    def _start(self) -> None:
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="ready-")
            atexit.register(self._end)
        ready, told = os.pipe()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONUNBUFFERED", None)  # it is read when Python begins, not in a fork
        line = [sys.executable, "-m", "tests.scenarios.ready_python", self._folder, str(told)]
        self._process = subprocess.Popen(
            line, cwd=ROOT, env=environment, stdin=subprocess.PIPE, pass_fds=(told,)
        )
        os.close(told)
        os.read(ready, 1)
        os.close(ready)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


class _InWorker(BaseException):
    """Raised in a fork, to be the worker without the subreaper's frames below it."""


def main(folder: str, told: int) -> Callable[[], int]:
    """Forks for each request, until the tests are gone; returns in each fork what it is to run."""
    from benchmarks.generated.warm_process import import_what_programs_need

    del sys.path[0]  # the root of the tests
    import_what_programs_need()
    signal.signal(signal.SIGCHLD, _reap)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.bind(f"{folder}/socket")
    waiting.listen()
    os.write(told, b".")
    os.close(told)
    parent = os.getppid()
    while os.getppid() == parent:
        there, _ = waiting.accept()
        if os.fork() == 0:
            waiting.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run = _serve(there)
            _forget_tests()
            return run
        there.close()
    sys.exit()


def _reap(signum: int, frame: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _serve(there: socket.socket) -> Callable[[], int]:
    size, descriptors, _, _ = socket.recv_fds(there, 8, 8)
    with there.makefile("rb") as stream:
        request = json.loads(stream.read(int.from_bytes(size, "big")))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    tempfile.tempdir = None  # a library may have asked for it when it was imported
    _take_streams(descriptors[:3])
    if "command" in request:
        return _guard(request["command"], *descriptors[3:], there)
    script = os.fork()
    if script == 0:
        there.close()
        return partial(_run_plainly, request["arguments"])
    _, status = os.waitpid(script, 0)
    there.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _guard(
    command: list[str], status: int, control: int, there: socket.socket
) -> Callable[[], int]:
    """Is the subreaper; returns in its child, which is the worker."""
    os.setsid()
    there.sendall(os.getpid().to_bytes(4, "big"))
    subreaper._become_worker = _become_worker
    try:
        subreaper.main(status, control, command)
    except _InWorker:
        for fd in (status, control):
            os.close(fd)
        there.close()
        return _worker(command)
    os._exit(0)


def _become_worker(command: list[str], mask: Iterable[int]) -> NoReturn:
    """As the subreaper's own, but nothing is executed."""
    os.environ["SUPERVISOR_PARENT_PID"] = str(os.getppid())
    os.setsid()
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    raise _InWorker


def _worker(command: list[str]) -> Callable[[], int]:
    started_with, users = dict(os.environ), dict(os.environ)
    give_back(users)

    def check() -> None:
        if dict(os.environ) != users:  # what a script sets before it imports torch must count
            os.execve(command[0], command, started_with)

    ReadyTorch(check).install()
    return partial(worker.main, command[command.index(WORKER) + 1 :])


def _run_plainly(arguments: list[str]) -> int:
    sys.argv = ["script.py", *arguments]
    sys.path.insert(0, os.getcwd())
    script = types.ModuleType("__main__")
    script.__dict__["__file__"] = path = os.path.abspath("script.py")
    sys.modules["__main__"] = script
    try:
        exec(compile(Path(path).read_text(), path, "exec"), script.__dict__)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _take_streams(descriptors: Sequence[int]) -> None:
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
        os.close(source)
    # As in a process that Python begins.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _forget_tests() -> None:
    """Takes modules of this repository's tests for none that the script brought with it."""
    for name in [n for n in sys.modules if n.partition(".")[0] in ("tests", "benchmarks")]:
        del sys.modules[name]


if __name__ == "__main__":
    # Not by a variable, which a script state would find.
    leave(main(sys.argv[1], int(sys.argv[2]))())
