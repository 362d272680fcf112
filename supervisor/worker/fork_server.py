"""Starts workers that need not import torch.

A process that has imported torch forks once for each request. Started and asked by
`supervisor.analysis.explain.replay_process` alone: a line of JSON on standard input with the
worker's ``arguments`` and the file of its ``output``; two lines come back, ``{"pid": ...}`` at
once and
``{"returncode": ...}`` when it has ended.

Hands a script the torch that its process already has, in the moment in which it imports it.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from supervisor.own_process import PARENT, command, give_back
from supervisor.worker import __main__ as worker


class ReadyTorch(importlib.abc.MetaPathFinder):
    """Makes ``import torch`` find a module that is complete, as if it were loaded then.

    Args:
        taken: called when torch is imported, before the importer has it.
        others: packages that are hidden, too, until they or torch are imported.
    """

    def __init__(self, taken: Callable[[], None], others: Collection[str] = ()) -> None:
        self._taken = taken
        self._packages = {"torch", *others}
        self._hidden: dict[str, types.ModuleType] = {}

    def install(self) -> None:
        """Hides them with all their modules."""
        for name in [name for name in sys.modules if _package(name) in self._packages]:
            self._hidden[name] = sys.modules.pop(name)
        sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        module = None if path is not None else self._hidden.get(fullname)
        spec = None if module is None else importlib.machinery.PathFinder.find_spec(fullname)
        if module is None or spec is None or spec.origin != module.__file__:
            return None  # the script has one of its own
        spec.loader = _Shown(module, self.show)
        return spec

    def show(self, name: str) -> None:
        """What torch has imported is there with torch; another package is there alone."""
        for each in [n for n in self._hidden if name in ("torch", _package(n))]:
            sys.modules[each] = self._hidden.pop(each)
        if name == "torch":
            sys.meta_path.remove(self)
            self._taken()


class _Shown(importlib.abc.Loader):
    """For one question after a module that is hidden."""

    def __init__(self, module: types.ModuleType, show: Callable[[str], None]) -> None:
        self._module, self._spec, self._show = module, module.__spec__, show

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        self._show(module.__name__)


def _package(name: str) -> str:
    return name.partition(".")[0]


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
