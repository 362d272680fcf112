"""Walks what the user's variables reach: containers, plain objects, modules.

Objects of library classes (trainers, averages) are entered one level deep only.
"""

from __future__ import annotations

import collections
import dataclasses
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

DEPTH_LIMIT = 6
COUNT_LIMIT = 20_000
_LONG = 1000
"""Longer containers (vocabularies, logs) are walked only if they begin with a tensor."""
_LIBRARY_FOLDERS = (
    *(folder for folder in sysconfig.get_paths().values() if folder != sys.prefix),
    *site.getsitepackages(),  # those of the system under a virtual environment that sees them
    site.getusersitepackages(),
    str(Path(torch.__file__).parents[1]),
)
_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
_NEVER_WALKED = (type, types.ModuleType, types.FunctionType)
_OPTIMIZERS_OWN = frozenset({"defaults", "param_groups", "state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place that holds a value: its path, the value, and how to replace it.

    `replace` is None where that is impossible (a tuple's item).
    """

    path: str
    value: Any
    replace: Callable[[Any], None] | None


def places(frames: Any, *, scalars: bool = True) -> Iterator[Place]:
    """Yields every tensor, array and scalar that variables reach, each object once.

    Args:
        frames: frame objects, or mappings name → dict of variables, or a sequence of either. A
            frame's name is its function's; the order given is the order walked.
        scalars: False leaves them out, and skips long lists of numbers quickly.
    """
    seen: set[int] = set()
    left = [COUNT_LIMIT]
    for name, variables, write in _named(frames):
        for key in list(variables):
            if isinstance(key, str) and not key.startswith("__"):
                place = Place(path=f"{name}.{key}", value=variables[key], replace=_bind(write, key))
                yield from _walk(place, 1, seen, left, scalars)


def _walk(
    place: Place, depth: int, seen: set[int], left: list[int], scalars: bool
) -> Iterator[Place]:
    value = place.value
    if value is None or isinstance(value, (bool, int, float, complex)):
        if scalars:
            yield place  # a tensor may come to lie here
        return
    if id(value) in seen or left[0] <= 0:
        return
    left[0] -= 1
    seen.add(id(value))
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield place
    elif depth < DEPTH_LIMIT and not isinstance(value, (str, bytes, *_NEVER_WALKED)):
        if not scalars and _holds_only_scalars(value):
            return
        try:
            found = list(_inside(place.path, value))
        except Exception:  # the user's __getattribute__ or the like; nothing to save in there
            return
        for inner in found:
            yield from _walk(inner, depth + 1, seen, left, scalars)


def _holds_only_scalars(value: Any) -> bool:
    """Whether it is a plain container of numbers and strings."""
    if type(value) is dict:
        return _SCALARS.issuperset(map(type, value.values()))
    plain = type(value) in (list, tuple, collections.deque)
    return plain and _SCALARS.issuperset(map(type, value))


def _inside(path: str, value: Any) -> Iterable[Place]:
    if isinstance(value, dict):  # other mappings may read files when they are asked
        if len(value) > _LONG:
            return []
        return [
            Place(path=f"{path}[{key!r}]", value=item, replace=_bind(value.__setitem__, key))
            for key, item in list(dict.items(value))
            if isinstance(key, (str, int, float, bool, tuple))
        ]
    if isinstance(value, (list, tuple, collections.deque)):
        if len(value) > _LONG and not isinstance(value[0], (torch.Tensor, np.ndarray)):
            return []
        write = None if isinstance(value, tuple) else value.__setitem__
        return [
            Place(path=f"{path}[{index}]", value=item, replace=_bind(write, index))
            for index, item in enumerate(value)
        ]
    if isinstance(value, nn.Module):
        return _inside_module(path, value)
    if isinstance(value, torch.optim.Optimizer):
        return _inside_optimizer(path, value)
    if dataclasses.is_dataclass(value) or is_users_class(type(value)):
        return _inside_object(path, value)
    if type(value).__module__.partition(".")[0] not in ("torch", "numpy"):
        return _on_the_surface(path, value)
    return []


def _inside_object(path: str, value: Any) -> list[Place]:
    names = list(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [
        Place(
            path=f"{path}.{name}",
            value=getattr(value, name),
            replace=_bind(_attribute_writer(value), name),
        )
        for name in names
        if not name.startswith("__") and hasattr(value, name)
    ]


def _on_the_surface(path: str, value: Any) -> list[Place]:
    """Tensors and arrays in the attributes of a library's object, alone or in containers."""
    found = []
    for name, own in list(getattr(value, "__dict__", {}).items()):
        first = own
        if isinstance(own, (list, tuple, dict)) and own:
            first = next(iter(own.values() if isinstance(own, dict) else own))
        if isinstance(first, (torch.Tensor, np.ndarray)):
            write = _bind(_attribute_writer(value), name)
            found.append(Place(path=f"{path}.{name}", value=own, replace=write))
    return found


def _inside_module(path: str, module: nn.Module) -> list[Place]:
    found = []
    for name, own in vars(module).items():
        if name in ("_parameters", "_buffers", "_modules"):
            write = own.__setitem__ if name == "_buffers" else None
            for key, item in own.items():
                found.append(Place(path=f"{path}.{key}", value=item, replace=_bind(write, key)))
        elif name not in _MODULE_INTERNALS:
            write = vars(module).__setitem__
            found.append(Place(path=f"{path}.{name}", value=own, replace=_bind(write, name)))
    return found


def is_library_file(path: str) -> bool:
    """Whether the file at `path` belongs to Python or to an installed package."""
    return path.startswith(_LIBRARY_FOLDERS)


def is_users_class(kind: type) -> bool:
    """Whether `kind` was defined in the user's own code, not in Python's or a package's folder."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ == "__main__":
        return True
    return file is not None and not is_library_file(file)


def _inside_optimizer(path: str, optimizer: torch.optim.Optimizer) -> list[Place]:
    """What an optimizer that is not torch's keeps beside its state: slow weights, averages."""
    if type(optimizer).__module__.partition(".")[0] == "torch":
        return []
    write = _attribute_writer(optimizer)
    return [
        Place(path=f"{path}.{name}", value=own, replace=_bind(write, name))
        for name, own in list(vars(optimizer).items())
        if name not in _OPTIMIZERS_OWN and not name.startswith("_")
    ]


_MODULE_INTERNALS = frozenset(vars(nn.Module()))


def _bind(write: Callable[[Any, Any], Any] | None, key: Any) -> Callable[[Any], None] | None:
    if write is None:
        return None
    return lambda value: write(key, value)


def _attribute_writer(owner: Any) -> Callable[[Any, Any], None]:
    return lambda name, value: object.__setattr__(owner, name, value)


def _named(
    frames: Any,
) -> Iterator[tuple[str, Mapping[str, Any], Callable[[str, Any], None] | None]]:
    """Yields name, variables and writer of each frame; equal names get a number."""
    if isinstance(frames, (Mapping, types.FrameType)):
        frames = [frames]
    used: collections.Counter[str] = collections.Counter()
    for frame in frames:
        if isinstance(frame, types.FrameType):
            name = frame.f_code.co_name.strip("<>")
            found = [(name, frame.f_locals, _frame_writer(frame))]
        else:
            found = [(name, inner, inner.__setitem__) for name, inner in frame.items()]
        for name, variables, write in found:
            used[name] += 1
            yield (name if used[name] == 1 else f"{name}#{used[name]}"), variables, write


def _frame_writer(frame: types.FrameType) -> Callable[[str, Any], None]:
    """Returns a function that assigns a variable in a suspended frame."""

    def write(name: str, value: Any) -> None:
        variables = frame.f_locals
        variables[name] = value
        if sys.version_info < (3, 13) and variables is not frame.f_globals:
            import ctypes

            to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
            to_fast(ctypes.py_object(frame), ctypes.c_int(0))

    return write
