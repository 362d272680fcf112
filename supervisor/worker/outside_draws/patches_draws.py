"""The functions of Python's library by which a script draws from outside, patched in place.

They stay what they were to whoever looks at them: methods are methods, clocks are no functions of
Python (one that a class holds must not become its method), and all are pickled by their names.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import datetime
import functools
import gc
import importlib
import io
import json
import multiprocessing.process
import os
import pathlib
import random
import socket
import subprocess
import sys
import time
import types
import uuid
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from supervisor.worker.outside_draws.outside_draws import OUTSIDE, RUNNING

_S = 1_000_000_000
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_SEED_BYTES = 32
"""Of a generator of Python's that begins anywhere: as much as a key of the system's own source."""
_getframe = sys._getframe
wall_ns, running_s, from_system = time.time_ns, time.perf_counter, os.urandom


def watch_outside() -> None:
    """Patches for the rest of this process's life; called once, before the script begins."""
    _watch_entropy()
    _watch_clocks()
    _watch_calendar()
    _watch_datetime()
    _watch_numbers()
    _watch_spawned_processes()


_DEVICES = ("/dev/urandom", "/dev/random")


def watch_opens(told: Mapping[int | str, Callable[[], object]]) -> None:
    """Has it told when a file of one of these names, or numbers, is about to be opened.

    An audit hook would hear `io.FileIO`, too, but at each `id` and each hash of a tensor as well:
    an optimizer takes three of them of each parameter at each step.
    """

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(_: Any, *args: Any, **kwargs: Any) -> Any:
            file = args[0] if args else kwargs.get("file", kwargs.get("path"))
            tell = told.get(file if type(file) is int else str(file))
            if tell is not None:
                tell()
            return original(*args, **kwargs)

        return open_

    for module in (io, os):
        _stand_in(module, "open", watch(module.open))
    replace_open(io.open)


def replace_open(open_: Callable[..., Any]) -> None:
    """Puts a function into the place of `open`, for modules that keep it by another name, too."""
    original = builtins.open
    builtins.open = io.open = open_
    for name, its_open in (("tarfile", "bltn_open"), ("bz2", "_builtin_open")):
        module = sys.modules.get(name)
        if getattr(module, its_open, None) is original:
            setattr(module, its_open, open_)
    patch_pathlib("open", open_)


def patch_pathlib(name: str, call: Callable[..., Any]) -> None:
    """Has paths call what was put into `os` or `io` under this name: Python 3.10's `pathlib` keeps
    what it found at its import, later versions look there."""
    accessor = getattr(pathlib, "_normal_accessor", None)
    if accessor is not None and hasattr(accessor, name):
        setattr(accessor, name, call)


class _Module:
    """What the methods that stand for a module's functions are bound to: so they are pickled by the
    names of what they stand for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> Any:
        return importlib.import_module, (self._name,)

    def __deepcopy__(self, _: Any) -> _Module:
        return self

    def __repr__(self) -> str:
        return f"<module '{self._name}' (built-in)>"


def _stand_in(module: types.ModuleType, name: str, function: Callable[..., Any]) -> None:
    original = getattr(module, name)
    for attribute in ("__name__", "__qualname__", "__doc__"):
        setattr(function, attribute, getattr(original, attribute))
    function.__module__ = module.__name__
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    setattr(module, name, types.MethodType(function, _Module(module.__name__)))


def _watch_entropy() -> None:
    watch_opens({name: functools.partial(OUTSIDE.reads, name) for name in _DEVICES})
    urandom, getrandom = from_system, getattr(os, "getrandom", None)

    def urandom_(_: Any, size: Any, /) -> bytes:
        if type(size) is not int or size < 0:
            return urandom(size)
        return OUTSIDE.draw("os.urandom", lambda: urandom(size), size)

    _stand_in(os, "urandom", urandom_)
    random._urandom = os.urandom  # type: ignore[attr-defined]
    if getrandom is not None:

        def getrandom_(_: Any, size: Any, flags: int = 0) -> bytes:
            return OUTSIDE.draw("os.getrandom", lambda: getrandom(size, flags))

        _stand_in(os, "getrandom", getrandom_)
    seed_ = random.Random.seed

    @functools.wraps(seed_)
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None:
            a = int.from_bytes(
                OUTSIDE.draw("random.seed()", lambda: urandom(_SEED_BYTES), _SEED_BYTES), "little"
            )
        seed_(self, a, version)

    random.Random.seed = seed  # type: ignore[method-assign]
    random.seed = random._inst.seed
    stamp = getattr(uuid, "_generate_time_safe", None)
    if stamp is not None:

        def stamp_(_: Any) -> Any:
            def made() -> bytes:
                number, safe = stamp()
                return json.dumps([number.hex(), safe]).encode()

            number, safe = json.loads(OUTSIDE.draw("uuid.uuid1", made))
            return bytes.fromhex(number), safe

        _stand_in(uuid, "_generate_time_safe", stamp_)


def _watch_clocks() -> None:
    for kind in _CLOCKS:
        now = getattr(time, f"{kind}_ns", None)
        if now is None:
            continue
        if kind != "time":
            RUNNING[kind] = now
        _watch_clock(kind, now)
    read, read_ns = time.clock_gettime, time.clock_gettime_ns

    def clock(number: Any, frame: Any) -> int:
        kind = f"clock {number}"
        if number not in (time.CLOCK_REALTIME, getattr(time, "CLOCK_TAI", None)):
            RUNNING.setdefault(kind, lambda: read_ns(number))
        return OUTSIDE.clock(kind, lambda: read_ns(number), frame)

    def in_seconds(_: Any, number: Any, /) -> float:
        return clock(number, _getframe(1)) / _S if type(number) is int else read(number)

    def in_nanoseconds(_: Any, number: Any, /) -> int:
        return clock(number, _getframe(1)) if type(number) is int else read_ns(number)

    _stand_in(time, "clock_gettime", in_seconds)
    _stand_in(time, "clock_gettime_ns", in_nanoseconds)


def _watch_clock(kind: str, now: Callable[[], int]) -> None:
    clock = OUTSIDE.clock

    def in_seconds(_: Any) -> float:
        return clock(kind, now, _getframe(1)) / _S

    def in_nanoseconds(_: Any) -> int:
        return clock(kind, now, _getframe(1))

    _stand_in(time, kind, in_seconds)
    _stand_in(time, f"{kind}_ns", in_nanoseconds)


def _watch_calendar() -> None:
    """Without an argument these read the clock on their own."""

    def watch(name: str) -> None:
        original = getattr(time, name)

        def told(_: Any, seconds: Any = None, /) -> Any:
            if seconds is None:
                seconds = OUTSIDE.clock("time", wall_ns, _getframe(1)) / _S
            return original(seconds)

        _stand_in(time, name, told)

    localtime, asctime, strftime = time.localtime, time.asctime, time.strftime
    for name in ("localtime", "gmtime", "ctime"):
        watch(name)

    def asctime_(_: Any, *given: Any) -> str:
        now = given or (localtime(OUTSIDE.clock("time", wall_ns, _getframe(1)) / _S),)
        return asctime(*now)

    def strftime_(_: Any, form: Any, *given: Any) -> str:
        now = given or (localtime(OUTSIDE.clock("time", wall_ns, _getframe(1)) / _S),)
        return strftime(form, *now)

    _stand_in(time, "asctime", asctime_)
    _stand_in(time, "strftime", strftime_)


def _watch_datetime() -> None:
    """`date.today` reads `time.time`; these two do not, and their type is written in C."""

    def now(cls: Any, tz: Any = None) -> Any:
        read = OUTSIDE.clock("time", wall_ns, _getframe(1))
        return _at(cls, read, tz)

    def utcnow(cls: Any) -> Any:
        if sys.version_info >= (3, 12):
            warnings.warn(
                "datetime.datetime.utcnow() is deprecated and scheduled for removal in a future "
                "version. Use timezone-aware objects to represent datetimes in UTC: "
                "datetime.datetime.now(datetime.UTC).",
                DeprecationWarning,
                stacklevel=2,
            )
        read = OUTSIDE.clock("time", wall_ns, _getframe(1))
        return _at(cls, read, datetime.timezone.utc).replace(tzinfo=None)

    replace_method(datetime.datetime, "now", classmethod(now))
    replace_method(datetime.datetime, "utcnow", classmethod(utcnow))


def _at(cls: Any, read: int, tz: Any) -> Any:
    whole, rest = divmod(read, _S)
    return cls.fromtimestamp(whole, tz).replace(microsecond=rest // 1000)


def replace_method(kind: type, name: str, method: Any) -> None:
    """Gives a type that is written in C another method, where this Python lets us."""
    original = kind.__dict__[name]
    function = getattr(method, "__func__", method)
    for attribute in ("__name__", "__doc__", "__qualname__"):
        with contextlib.suppress(AttributeError):
            setattr(function, attribute, getattr(original, attribute))
    for variables in gc.get_referents(kind.__dict__):
        if type(variables) is dict and variables.get(name) is original:
            variables[name] = method
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _watch_numbers() -> None:
    """Numbers of processes, descriptors and ports, as far as Python's own functions give them."""

    def watch(module: Any, name: str, found: Callable[[Any], list[int]]) -> None:
        original = getattr(module, name, None)
        if original is None:
            return

        def noted(_: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for number in found(result):
                OUTSIDE.own(name, number)
            return result

        _stand_in(module, name, noted)

    def one(result: Any) -> list[int]:
        return [result] if type(result) is int else []

    for name in ("fork", "getpid", "getppid", "open", "dup", "dup2", "posix_spawn", "spawnv"):
        watch(os, name, one)
    for name in ("forkpty", "pipe", "pipe2", "openpty"):
        watch(os, name, list)
    watch(subprocess, "_fork_exec", one)
    with contextlib.suppress(ImportError):  # what `multiprocessing` spawns by
        watch(importlib.import_module("_posixsubprocess"), "fork_exec", one)
    started = multiprocessing.process.BaseProcess.start

    @functools.wraps(started)
    def start(self: multiprocessing.process.BaseProcess) -> None:
        started(self)
        OUTSIDE.own("start", self.pid or -1)  # a process that a server forks for it

    multiprocessing.process.BaseProcess.start = start  # type: ignore[method-assign]
    for name in ("getsockname", "fileno"):
        _watch_socket(name)


def _watch_spawned_processes() -> None:
    """What `multiprocessing` starts by spawn or forkserver inherits no patch: it makes its own when
    it reads how it is to begin."""
    original = spawn.get_preparation_data

    @functools.wraps(original)
    def prepared(name: str) -> dict[str, Any]:
        found: dict[str, Any] = original(name)
        return {**found, "supervisor": _WatchesItself(OUTSIDE.path)} if OUTSIDE.path.name else found

    spawn.get_preparation_data = prepared


class _WatchesItself:
    """Is pickled as a call of `watch_spawned`; a process that cannot import us begins without."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        root = str(Path(__file__).parents[3])
        said = f"""import sys
sys.path.append({root!r})
try:
    from {__name__} import watch_spawned
    watch_spawned({str(self._path)!r})
except Exception:  # it is watched from outside alone, and begins
    pass
finally:
    sys.path.remove({root!r})"""
        return exec, (said, {})


def watch_spawned(path: str) -> None:
    """Called in such a process as it begins; `path`: of the training's record."""
    OUTSIDE.watches_for(Path(path))
    _watch_entropy()


def _watch_socket(name: str) -> None:
    original = getattr(socket.socket, name)

    @functools.wraps(original)
    def noted(self: socket.socket) -> Any:
        result = original(self)
        port = result[1] if isinstance(result, tuple) and len(result) > 1 else result
        if type(port) is int:
            OUTSIDE.own(name, port)
        return result

    setattr(socket.socket, name, noted)
