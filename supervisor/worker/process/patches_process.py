"""The patches by which a worker is told that the script ends its process, or becomes another."""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from supervisor.unwarned import unwarned

OUR_THREADS = "supervisor-"
"""The names of our threads begin so."""


def leave_signals_to_the_script() -> None:
    """Called by our threads as they begin. A script may block a signal in all its threads but one
    that waits for it: the system must not give it to one of ours."""
    mine = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - mine)


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


def watch_exec(again: Again, becomes: Callable[[str], None]) -> None:
    """Has `again` asked whether the script executes itself; then our command is executed instead.

    Args:
        again: given command line and environment, returns ours, or None to let the call be.
        becomes: called before this process becomes another program, with its path.
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
                # `os.execvp` tries one folder after the other.
                if ours is None and os.path.isfile(path) and os.access(path, os.X_OK):
                    becomes(os.fsdecode(path))
        if ours is not None:
            execve(ours[0][0], *ours)
        elif env is None:
            execv(path, args)
        else:
            execve(path, args, env)

    os.execv, os.execve = execv_, execve_  # type: ignore[assignment]


def watch_own_signals(sends: Callable[[int], None]) -> None:
    """Has `sends` called before this process, not a child of it, sends itself a signal."""
    worker = os.getpid()

    def watch(
        module: Any, name: str, own: Callable[[Any], bool], number: int | None = None
    ) -> None:
        """`own`: whether the first argument means this process; the signal is the last one."""
        original = getattr(module, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def send(*args: Any) -> Any:
            if os.getpid() == worker:
                with contextlib.suppress(Exception):  # of ours: the script's own call stands
                    if own(args[0] if args else None):
                        sends(int(args[-1] if number is None else number))
            return original(*args)

        setattr(module, name, send)

    watch(os, "kill", lambda pid: pid in (worker, 0, -1, -os.getpgrp()))
    watch(os, "killpg", lambda group: group in (0, os.getpgrp()))
    watch(os, "abort", lambda _: True, signal.SIGABRT)
    watch(signal, "raise_signal", lambda _: True)
    watch(signal, "pthread_kill", lambda _: True)
    watch(_thread, "interrupt_main", lambda _: True, signal.SIGINT)


def watch_fork() -> None:
    """Has `os.fork` count the script's own threads where Python warns of several, as 3.12 does."""
    for name in ("fork", "forkpty"):
        setattr(os, name, _counting(name, getattr(os, name)))


def _counting(name: str, original: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(original)
    def fork() -> Any:
        before = os.getpid()
        made = unwarned(original)
        if sys.version_info >= (3, 12) and os.getpid() == before and _has_script_several_threads():
            warnings.warn(
                f"This process (pid={before}) is multi-threaded, use of {name}() may lead to "
                "deadlocks in the child.",
                DeprecationWarning,
                stacklevel=2,
            )
        return made

    return fork


def _has_script_several_threads() -> bool:
    try:
        count = len(os.listdir("/proc/self/task"))
    except OSError:
        count = threading.active_count()
    ours = sum(thread.name.startswith(OUR_THREADS) for thread in threading.enumerate())
    return count - ours > 1
