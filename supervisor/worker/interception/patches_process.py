"""The patches by which a worker is told that the script ends its process, or becomes another."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def watch_exit(ended: Callable[[int], None]) -> None:
    """Has `ended` called before `os._exit` ends this process, not a child of it."""
    original = os._exit
    worker = os.getpid()

    @functools.wraps(original)
    def _exit(status: int) -> Any:
        if os.getpid() == worker:
            with contextlib.suppress(BaseException):  # of ours: the script wants to end
                ended(status)
        original(status)

    os._exit = _exit


Again = Callable[[Sequence[str], Mapping[str, str]], "tuple[list[str], dict[str, str]] | None"]


def watch_exec(again: Again) -> None:
    """Has `again` asked whether the script executes itself; then our command is executed instead.

    Args:
        again: given command line and environment, returns ours, or None to let the call be.
    """
    execv, execve = os.execv, os.execve
    worker = os.getpid()

    @functools.wraps(execv)
    def execv_(path: Any, args: Any) -> Any:
        execve_(path, args, None)

    @functools.wraps(execve)
    def execve_(path: Any, args: Any, env: Any) -> Any:
        ours = None
        if os.getpid() == worker:
            with contextlib.suppress(Exception):  # of ours: the script's own call stands
                words = [os.fsdecode(word) for word in args]
                given = os.environ if env is None else env
                ours = again(
                    [os.fsdecode(path), *words[1:]],
                    {os.fsdecode(k): os.fsdecode(v) for k, v in given.items()},
                )
        if ours is not None:
            execve(ours[0][0], *ours)
        elif env is None:
            execv(path, args)
        else:
            execve(path, args, env)

    os.execv, os.execve = execv_, execve_  # type: ignore[assignment]
