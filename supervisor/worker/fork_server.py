"""Starts workers that need not import torch.

A process that has imported torch forks once for each request. Started and asked by
`supervisor.analysis.explain.replay_process` alone: a line of JSON on standard input with the
worker's ``arguments`` and the file of its ``output``; two lines come back, ``{"pid": ...}`` at
once and
``{"returncode": ...}`` when it has ended.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from supervisor.own_process import PARENT, command, give_back
from supervisor.worker import __main__ as worker
from supervisor.worker.ready_torch import ReadyTorch


class ForkServer:
    """Forks workers, one at a time.

    Args:
        environment: what the server itself was started with, before anything was imported.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def serve(self) -> list[str] | None:
        """Returns a worker's arguments in each child, None in the server when it is over.

        Raises:
            RuntimeError: a Python thread is at work in this process: it must not be forked.
        """
        for line in sys.stdin:
            request = json.loads(line)
            # NumPy's OpenBLAS has threads already, and itself sees to their end in a fork.
            if threading.active_count() > 1:
                raise RuntimeError("a library has started a thread at its import")
            pid = os.fork()
            if pid == 0:
                self._become_worker(request)
                return [str(word) for word in request["arguments"]]
            _answer({"pid": pid})
            _, status = os.waitpid(pid, 0)
            _answer({"returncode": os.waitstatus_to_exitcode(status)})
        return None

    def _become_worker(self, request: Mapping[str, Any]) -> None:
        os.setsid()
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        worker.die_with_parent(os.getppid())
        ready = dict(os.environ)
        arguments = request["arguments"]

        def check() -> None:
            # What a script sets before it imports torch must count: then it begins anew.
            if dict(os.environ) != ready:
                self._begin_anew(arguments)

        ReadyTorch(check).install()

    def _begin_anew(self, arguments: list[str]) -> None:
        line = [*command("supervisor.worker.__main__"), *arguments]
        os.execve(line[0], line, self.environment_of_child())

    def environment_of_child(self) -> dict[str, str]:
        """Returns what a worker of its own would be started with; called in a child."""
        return {**self._environment, PARENT: str(os.getppid())}


def warm_up() -> None:
    """Imports what every worker needs; computes nothing, so that no thread begins."""
    import torch

    import supervisor.worker.inspection.experiment
    import supervisor.worker.worker_session  # noqa: F401

    # The first optimizer of a process imports a third of torch.
    class First(torch.optim.Optimizer):
        """Not one of torch's: the class of an optimizer that was made is another from then on."""

    First([torch.zeros(1, requires_grad=True)], {})


def _answer(values: Mapping[str, int]) -> None:
    print(json.dumps(values), flush=True)


def leave(code: int) -> NoReturn:
    """Ends a worker as Python would, without taking torch's modules down one by one."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: list[str]) -> int:
    """Serves until its input ends; in a child it is a worker, and does not return."""
    started_with = dict(os.environ)
    worker.die_with_parent(give_back(os.environ).parent)
    warm_up()
    server = ForkServer(started_with)
    words = server.serve()
    if words is not None:
        leave(worker.main(words, server.environment_of_child()))
    return 0
