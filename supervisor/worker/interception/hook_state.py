"""What the script's hooks on modules and gradients keep in Python, in one checksum.

A fast-forward runs no hooks of forwards and backwards, so what they fill is not as it was. Tensors
are left out: those that the script's variables hold are saved and put back by themselves.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import xxhash
from torch.nn import Module

OBJECTS = 5_000
"""Objects that are looked at, about 5 ms; a list that is longer differs by its length, too."""
_OF_MODULES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def hook_state(models: Iterable[Module]) -> str:
    """Returns the checksum, equal in every process that came the same way; empty without hooks.

    Called at a boundary, where no hook is at work.
    """
    hooks = [hook for model in models for hook in _hooks(model)]
    if not hooks:
        return ""
    checksum = xxhash.xxh3_64()
    waiting: deque[Any] = deque(hooks)
    seen: dict[int, Any] = {}
    while waiting and len(seen) < OBJECTS:
        value = waiting.popleft()
        if isinstance(value, _PLAIN):
            checksum.update(repr(value).encode(errors="replace"))
        elif id(value) not in seen:
            seen[id(value)] = value
            checksum.update(type(value).__qualname__.encode())
            waiting.extend(_reached_from(value))
    return checksum.hexdigest()


def _hooks(model: Module) -> Iterator[Any]:
    holders: list[tuple[Any, tuple[str, ...]]] = [(m, _OF_MODULES) for m in model.modules()]
    holders += [(p, _OF_PARAMETERS) for p in model.parameters()]
    for holder, names in holders:
        for name in names:
            for hook in (getattr(holder, name, None) or {}).values():
                if not _is_torchs(hook):
                    yield hook


def _is_torchs(hook: Any) -> bool:
    """Whether it is one of torch's own (weight norm), which keep nothing outside of the model."""
    owner = hook.func if isinstance(hook, functools.partial) else hook
    module = getattr(owner, "__module__", None) or type(owner).__module__
    return str(module).split(".")[0] == "torch"


def _reached_from(value: Any) -> Iterable[Any]:
    if isinstance(value, (torch.Tensor, Module, types.ModuleType, type)):
        return ()  # the checkpoint has tensors and models; modules and classes do not change
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, types.MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, types.FunctionType):
        return _kept_by(value)
    if isinstance(value, Mapping):
        return (len(value), *(part for item in value.items() for part in item))
    if isinstance(value, (list, tuple, deque)):
        return (len(value), *value)
    if isinstance(value, (set, frozenset)):
        return (len(value),)
    own = getattr(value, "__dict__", None)
    return () if own is None else (*own.keys(), *own.values())


def _kept_by(function: types.FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
