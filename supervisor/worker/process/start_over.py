"""Begins this worker process again, as the parent started it, in the middle of a fast-forward."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from supervisor.own_process import LOADS_ALL, command

_begun: dict[str, Any] = {}


def remember_start(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Called before the script can change folder or environment."""
    line = [*command("supervisor.worker.__main__"), *arguments]
    _begun.update(environment=dict(environment), folder=os.getcwd(), line=line)


def started_as(*, kind: str, target: str, arguments: Sequence[str]) -> list[str]:
    """Returns the command line of this worker, with another program."""
    line: list[str] = _begun["line"]
    place = line.index("--kind")
    return [*line[:place], "--kind", kind, "--target", target, "--", *arguments]


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
    environment = _begun["environment"] | {LOADS_ALL: "1"}
    os.execve(_begun["line"][0], _begun["line"], environment)


def loads_all() -> bool:
    """Whether this process has been started over."""
    environment: dict[str, str] = _begun.get("environment", {})
    return environment.get(LOADS_ALL) == "1"
