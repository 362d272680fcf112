"""``python -m benchmarks.generated.warm_process FD``: forks programs; has torch imported already.

A process that imports torch costs two seconds, a fork a few milliseconds. Requests come as lines
of JSON over a socket, with four descriptors each: standard output, standard error, where to tell
the process number and the end, and standard input. Programs are run one at a time.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import socket
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from supervisor.own_process import PARENT
from supervisor.worker import __main__ as worker
from supervisor.worker.fork_server import leave, warm_up
from supervisor.worker.process.program import Program
from supervisor.worker.ready_torch import ReadyTorch

_IMPORTED = (
    *("csv", "gzip", "logging", "pickle", "sqlite3", "statistics", "numpy.random", "omegaconf"),
    *("torch.func", "torch.nn.utils.parametrizations", "torch.optim.swa_utils"),
    *("torch.utils.checkpoint", "torch.utils.data", "safetensors.torch"),
    *("supervisor.worker.run", "supervisor.worker.start"),
)
_ROOMS = ("supervisor.detectors", "supervisor.worker", "supervisor.actions")
EVENT = "moment"
"""Programs raise this audit event at places of theirs where they may be killed."""


def main() -> int:
    """Serves until the other side closes."""
    there = socket.socket(fileno=int(sys.argv[1]))
    worker.die_with_parent(os.getppid())
    import_what_programs_need()
    while True:
        data, fds, _, _ = socket.recv_fds(there, 1 << 16, 4)
        if not data:
            return 0
        pid = os.fork()
        if pid == 0:
            there.close()
            _become(json.loads(data), fds)
        for fd in (*fds[:2], fds[3]):
            os.close(fd)
        os.write(fds[2], f"pid {pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(fds[2], f"ended {os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(fds[2])


def import_what_programs_need() -> None:
    warm_up()
    for name in _IMPORTED:
        if find_spec(name.partition(".")[0]) is not None:  # an extra may not be installed
            import_module(name)
    for room in map(import_module, _ROOMS):
        for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            import_module(found.name)


def _become(request: dict[str, Any], fds: list[int]) -> None:
    os.setsid()
    os.chdir(request["folder"])
    for source, target in ((fds[3], 0), (fds[0], 1), (fds[1], 2)):
        os.dup2(source, target)
    for fd in fds:
        os.close(fd)
    # As in a process that Python begins: whole lines only where that is asked for.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if request["kill_at"] is not None:
        sys.addaudithook(_Moments(request["kill_at"]).saw)
    if request["count_to"]:
        moments = _Moments(None)
        sys.addaudithook(moments.saw)
    if request["program"] is not None:
        code = _run_plain(request["program"])
        if request["count_to"]:
            with open(request["count_to"], "w") as file:
                json.dump(moments.names, file)
        leave(code)
    os.environ.update(request["environment"])
    ReadyTorch(lambda: None).install()
    leave(worker.main(_taken(request), {**os.environ, PARENT: str(os.getppid())}))


def _taken(request: dict[str, Any]) -> list[str]:
    """Returns the worker's arguments, and empties the request: they are others in each attempt, and
    variables of functions that are being executed belong to the script's."""
    arguments: list[str] = request["arguments"]
    request.clear()
    return arguments


def _run_plain(path: str) -> int:
    program = Program(kind="script", target=path, function=None, arguments=())
    try:
        program.run(lambda: None)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


class _Moments:
    """Counts the program's moments; kills the process at one of them.

    Args:
        kill_at: number of the moment; None: never.
    """

    def __init__(self, kill_at: int | None) -> None:
        self._kill_at = kill_at
        self.names: list[str] = []

    def saw(self, event: str, args: tuple[Any, ...]) -> None:
        if event != EVENT:
            return
        if len(self.names) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(str(args[0]))


for _function in (main, _become):  # below a script's own frames, and none of them
    _function.__code__ = _function.__code__.replace(co_filename=str(worker.__file__))

if __name__ == "__main__":
    sys.exit(main())
