"""Where a value of the script lies, and what a walk does not enter."""

from __future__ import annotations

import array
import contextvars
import dis
import functools
import io
import pathlib
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from supervisor.training_state.script_state.single_values import SINGLE


class Place:
    """Where a value lies.

    Attributes:
        path: as a person would write it, `main.trainer.callbacks[0].best`.
        value: what lies there.
        is_plain: it is a container of numbers and strings alone, and was not entered.
        same_as: path of the nearer place where this very object lies; empty at its first place.
    """

    __slots__ = ("_holder", "_key", "_write", "is_plain", "path", "same_as", "value")

    def __init__(
        self,
        path: str,
        value: Any,
        holder: Any = None,
        key: Any = None,
        write: Callable[[Any, Any, Any], None] | None = None,
    ) -> None:
        self.path = path
        self.value = value
        self.is_plain = False
        self.same_as = ""
        self._holder = holder
        self._key = key
        self._write = write

    @property
    def replace(self) -> Callable[[Any], None] | None:
        """Puts another value here; None where that is impossible (a tuple's item)."""
        if self._write is None:
            return None
        return functools.partial(self._write, self._holder, self._key)


def write_item(holder: Any, key: Any, value: Any) -> None:
    holder[key] = value


def write_attribute(holder: Any, name: str, value: Any) -> None:
    object.__setattr__(holder, name, value)


def write_class(holder: type, name: str, value: Any) -> None:
    type.__setattr__(holder, name, value)


def write_context(variable: contextvars.ContextVar[Any], _: str, value: Any) -> None:
    variable.set(value)


def write_cell(cell: types.CellType, name: str, value: Any) -> None:
    cell.cell_contents = value


_OWN_OF_THE_PROCESS = frozenset(
    {
        *("_abc", "_contextvars", "_ctypes", "_io", "_thread", "_weakref", "asyncio", "concurrent"),
        *("ctypes", "importlib", "io", "logging", "multiprocessing", "queue", "select", "socket"),
        *("sqlite3", "ssl", "rich", "subprocess", "supervisor", "tempfile", "threading", "weakref"),
    }
)
"""Modules whose objects, and those derived from them, belong to this process: locks, files,
threads, queues between them, and what draws on its terminal."""
_FOR_READERS = ("typing", "typing_extensions")
"""Modules whose own objects and functions tell of types, and keep nothing but their caches; not so
what is derived from them."""
_OF_TORCH = (
    *("torch.utils.data.", "torch.optim.", "torch.amp.", "torch.cuda.amp."),
    *("torch.distributions.", "torch.quasirandom.", "torch.masked.", "torch.nn."),
    "torch.distributed.algorithms.",  # states of communication hooks, and averagers' counts
)
SHOWN: tuple[type, ...] = (
    *(torch.Tensor, np.ndarray, np.generic, torch.dtype, torch.device, torch.layout, np.dtype),
    *(torch.Generator, np.random.Generator, np.random.RandomState, random.Random),
    *(types.ModuleType, types.BuiltinFunctionType, types.BuiltinMethodType, pathlib.PurePath),
    *(io.StringIO, io.BytesIO, int, float, complex, str, bytes, *SINGLE),
)
"""Not entered, but `facts.fact_of` tells what they are; functions in C and modules keep nothing."""
_CHANGEABLE = (bytearray, array.array)
CALLED_BY_NAME: tuple[type, ...] = (
    *(int, float, complex, str, bytes, *(one for one in SINGLE if one not in _CHANGEABLE)),
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, np.generic),
    *(torch.dtype, torch.device, torch.layout, np.dtype, pathlib.PurePath),
)
"""Known by their names or values: whether two are one object tells nothing."""


def is_entered(kind: type) -> bool:
    """Whether the attributes of such objects are looked at."""
    module = getattr(kind, "__module__", None)
    if isinstance(module, str) and module.startswith("torch."):
        return f"{module}.".startswith(_OF_TORCH)
    return module not in _FOR_READERS and not any(is_of_the_process(base) for base in kind.__mro__)


def is_pythons_own(name: str) -> bool:
    """Whether a variable is one that Python itself sets (`__name__`), or that torch's compiler puts
    among those of the script (`__compiled_fn_3_...`, `__resume_at_40_5`)."""
    return name.startswith("__") and (name.endswith("__") or any(map(str.isdigit, name)))


def is_of_the_process(owner: Any) -> bool:
    module = getattr(owner, "__module__", None)
    return not isinstance(module, str) or module.partition(".")[0] in _OWN_OF_THE_PROCESS


def is_for_readers(function: Any) -> bool:
    """Whether it is one of `typing`'s own."""
    return getattr(function, "__module__", None) in _FOR_READERS


def is_torchs(hook: Any) -> bool:
    """Whether it is one of torch's own (weight norm), which keep nothing outside of the model."""
    owner = hook.func if isinstance(hook, functools.partial) else hook
    module = getattr(owner, "__module__", None) or type(owner).__module__
    return str(module).split(".")[0] == "torch"


_STORE_ATTR = dis.opmap["STORE_ATTR"]


@functools.cache
def assigned_by(kind: type) -> frozenset[str]:
    """Names of the attributes that the methods of a class itself assign."""
    found = set()
    for own in vars(kind).values():
        if isinstance(own, types.FunctionType):
            code, extended = own.__code__.co_code, 0
            for step, arg in zip(code[::2], code[1::2], strict=True):  # `dis` takes 20 times longer
                number = extended | arg
                extended = number << 8 if step == dis.EXTENDED_ARG else 0
                if step == _STORE_ATTR:
                    found.add(own.__code__.co_names[number])
    return frozenset(found)
