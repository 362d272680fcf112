"""A process that waits with torch imported, and becomes the rank that dies.

Started by the agent with a rank's own command line. Torch is hidden until the script imports it;
where the script has done something before that could make the import another one, the process
executes itself as a rank that begins anew. What the script could see all the same: Python's own
modules that torch brings are loaded before it is, and `/proc/self/environ` is that of the first
local rank.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from supervisor.own_process import give_back
from supervisor.worker.outside_draws.patches_draws import watch_outside
from supervisor.worker.ready_torch import ReadyTorch

_execve = os.execve


def stand_by(line: Sequence[str]) -> None:
    """Returns when this process is to be a rank, with that rank's environment; ends with the agent.

    Args:
        line: by which such a rank is started.
    """
    give_back(os.environ)
    _be_silent()
    watch_outside()  # a module that torch brings may hold a clock
    before = set(sys.modules)
    with warnings.catch_warnings():
        known = list(warnings.filters)
        _import()
        filters = [each for each in warnings.filters if each not in known]
    brought = _origins(set(sys.modules) - before)
    environment = _await_death()
    os.environ.clear()
    os.environ.update(environment)
    users = dict(environment)
    give_back(users)
    ready = (users, *_world())

    def taken() -> None:
        if (dict(os.environ), *_world()) != ready or _origins(brought) != brought:
            _execve(line[0], [*line], environment)
        warnings.filters[:0] = [each for each in filters if each not in warnings.filters]  # type: ignore[index]
        with warnings.catch_warnings():
            pass  # by which Python heeds them

    ours = {"supervisor", *sys.stdlib_module_names}
    ReadyTorch(taken, brought.keys() - ours).install()


def _import() -> None:
    """What each rank imports when its script imports torch."""
    import supervisor.worker.build
    import supervisor.worker.start  # noqa: F401


def _world() -> tuple[Any, ...]:
    """What the import of torch depends on, beside the environment, and what it would make anew."""
    import numpy as np

    random = [np.asarray(each).tobytes() for each in np.random.get_state(legacy=True)]
    return os.sched_getaffinity(0), list(sys.meta_path), random


def _origins(names: Any) -> dict[str, str]:
    """Returns the files from which these modules would be imported now; those of no package."""
    found = {}
    for name in names:
        spec = None if "." in name else importlib.machinery.PathFinder.find_spec(name)
        if spec is not None and spec.has_location:
            found[name] = str(spec.origin)
    return found


def _be_silent() -> None:
    """Until its streams are those of a rank."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


def _await_death() -> dict[str, str]:
    """Says that it is ready; returns the environment of the rank that it becomes."""
    os.write(0, b".")
    told = b""
    while not told.endswith(b"\n"):
        try:
            part = os.read(0, 65536)
        except OSError:
            part = b""
        if not part:
            os._exit(0)  # nobody has died, and the agent is gone
        told += part
    environment: dict[str, str] = json.loads(told)
    return environment
