"""Everything this package raises on purpose.

SupervisorError
├── UsageError            the command line, a policy or a config is wrong: exit code 64
│   └── ConfigError       a YAML file, a `--set` or a key in one
├── RunDirectoryError     a run directory is missing, foreign or not readable
├── CheckpointError       a checkpoint cannot be written or must not be loaded
│   ├── CheckpointDamaged it was read back and is not what was written
│   ├── StateNotFinite    a state holds NaN or infinities, so it is not saved
│   └── StateTorn         the live state is half an older one: nothing may go on with it
└── ReplayError           a resumed script does something else than the recorded one did
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator


class SupervisorError(Exception):
    """Base of all errors that this package raises on purpose.

    The message always says where, what, and what to do: ``runs/a: no run.json: give the directory
    that `supervisor run` printed``.
    """


class UsageError(SupervisorError):
    """Something the user asked for is not possible as asked; nothing was started (exit 64)."""


class ConfigError(UsageError):
    """A policy, a config or a ``--set`` is wrong; names the file, the key and the nearest key."""


class RunDirectoryError(SupervisorError):
    """A run directory is missing, holds another run, or cannot be read."""


class CheckpointError(SupervisorError):
    """A checkpoint cannot be written, or there is none that may be loaded."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint on disk is not what was written: a checksum, a size or a file is wrong."""


class StateNotFinite(CheckpointError):
    """A state that was to be saved holds NaN or infinities; names the first such tensor."""


class StateTorn(CheckpointError):
    """Writing a state into the live objects failed half-way: the process has to end."""


class ReplayError(SupervisorError):
    """A script that is being fast-forwarded does something else than the recorded run did."""


class PassesGuards:
    """Mixed into what no guard of ours keeps, because it is to reach the script's loop."""


def pass_on(error: BaseException) -> None:
    """Called by whoever asks objects of the script's, with what the question raised.

    A property may raise whatever it likes, `SystemExit` too; that ends nothing. What is to reach
    the script's loop is raised again: what `PassesGuards`, and what came of a signal, which may
    arrive while we ask; a time limit is often a handler of SIGALRM that raises `TimeoutError`.

    Raises:
        BaseException: `error` itself.
    """
    if isinstance(error, PassesGuards) or hasattr(error, "_passes_guards"):
        raise error
    if _came_of_a_signal(error):
        raise error


def let_pass(error: BaseException) -> None:
    """Marks what a function of the script's has raised that it gave us to call."""
    error._passes_guards = True  # type: ignore[attr-defined]


def _came_of_a_signal(error: BaseException) -> bool:
    """Whether a handler raised it: Python's own of SIGINT, which has no frame, or the script's."""
    import signal

    if isinstance(error, GeneratorExit):
        return True
    frames = list(_frames(error))
    codes = [_code_of(signal.getsignal(number)) for number in signal.valid_signals()]
    if any(frame.tb_frame.f_code is code for frame in frames for code in codes):
        return True
    return isinstance(error, KeyboardInterrupt) and not (frames and _raises(frames[-1]))


def _code_of(handler: object) -> types.CodeType | None:
    """A handler may be a function, a method, a part of one, or an object that is called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for one in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004
        code = getattr(getattr(one, "__func__", one), "__code__", None)
        if isinstance(code, types.CodeType):
            return code
    return None


def _frames(error: BaseException) -> Iterator[types.TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _raises(trace: types.TracebackType) -> bool:
    """Whether the frame stands at a `raise` statement."""
    import dis

    code, at = trace.tb_frame.f_code, trace.tb_lasti
    names = (one.opname for one in dis.get_instructions(code) if one.offset == at)
    return any(name in ("RAISE_VARARGS", "RERAISE") for name in names)
