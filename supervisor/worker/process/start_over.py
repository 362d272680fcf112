"""Begins this worker process again, as the parent started it, in the middle of a fast-forward."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

LOAD_ALL = "SUPERVISOR_LOADS_ALL"
_begun: dict[str, Any] = {}


def remember_start() -> None:
    """Called before the script can change folder or environment."""
    _begun.update(environment=dict(os.environ), folder=os.getcwd())


def start_over() -> NoReturn:
    """Replaces the process by a new one that leaves no loading out.

    Nothing of the training has happened yet: a fast-forward changes neither checkpoints nor tape.
    The process keeps its number, so for the parent it is the same attempt.
    """
    import multiprocessing  # the parent's starts should not wait for it

    for child in multiprocessing.active_children():  # loader workers would wait for ever
        child.terminate()
        child.join()
    os.chdir(_begun["folder"])
    sys.stdout.flush()
    environment = _begun["environment"] | {LOAD_ALL: "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def loads_all() -> bool:
    """Whether this process has been started over; asked once, children must not inherit it."""
    return os.environ.pop(LOAD_ALL, "") == "1"
