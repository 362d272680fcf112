"""Functions in C within which the script trains, and which gather tensors: `sum(step(x) for x in
data)`, `list(map(step, data))`. What they have gathered lies where nobody can see it or put it
back: a replay has gathered other values.
"""

from __future__ import annotations

import builtins
import collections
import dis
import gc
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from supervisor.training_state.script_state.reach import Reach
from supervisor.worker.script_state.stack_temporaries import call_names

_ITERATE = frozenset({"FOR_ITER", "SEND", "YIELD_FROM"})
_ASK_ONCE = frozenset({"next", ".send", ".throw", ".__next__", "any", "all", ".extend", ".update"})
_UNPACK = frozenset({"LIST_EXTEND", "SET_UPDATE", "UNPACK_SEQUENCE", "UNPACK_EX"})
_GATHER = frozenset({"dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"})
"""Of Python's own functions, those that keep what an iterator of Python's own (`map`) gives."""
_OWN_FUNCTIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
"""Before Python 3.12: what they gather is found on their own stacks."""
_KEEPERS = (torch.Tensor, list, tuple, set, dict, collections.deque)


def unseen_gathering(variables: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns what gathers tensors out of sight; empty if nothing does.

    Called in the training's thread. Only where there is such a call, goes through all objects that
    Python knows.

    Args:
        variables: name → variables of the script.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        around = frame.f_back
        if is_gathered(frame, around):
            place = f"{around.f_code.co_name} line {around.f_lineno}"
            return place if _are_tensors_unseen(variables) else ""
        frame = around
    return ""


def is_gathered(inner: FrameType, around: FrameType) -> bool:
    """Whether what `inner` gives goes to a function in C that keeps it, or nobody can say.

    Args:
        around: called by, or calling by way of that function.
    """
    is_generator = bool(inner.f_code.co_flags & inspect.CO_GENERATOR)
    if inner.f_code.co_name in _OWN_FUNCTIONS:
        return False
    operation = _operation(around)
    if operation in _ITERATE or operation in _UNPACK:
        return operation in _UNPACK
    names = call_names(around)
    if names is None:  # any that it names; the frozen parts of Python keep nothing
        is_frozen = around.f_code.co_filename.startswith("<frozen")
        gathers = is_generator or not _GATHER.isdisjoint(around.f_code.co_names)
        return gathers and not is_frozen
    if is_generator:
        return not _ASK_ONCE.intersection(names)
    if not {inner.f_code.co_name, f".{inner.f_code.co_name}"}.isdisjoint(names):
        return False  # called by the line itself
    return any(
        name in _GATHER and around.f_globals.get(name) in (None, getattr(builtins, name))
        for name in names
    )


def _operation(frame: FrameType) -> str:
    """Returns the name of the instruction that is executed."""
    name = ""
    for one in dis.get_instructions(frame.f_code):
        if one.offset > frame.f_lasti:
            break
        name = one.opname
    return name


def _are_tensors_unseen(variables: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether there are tensors to which no variable leads, and no object that Python knows.

    Left out is what calls under way work on: their arguments lie on stacks, too.
    """
    referred: set[int] = set()
    under_way: list[Any] = []
    for frame in _frames():  # before `known`: this function's own frame is among them
        names = frame.f_locals
        referred.update((id(names), *map(id, names.values())))
        under_way += [one for one in names.values() if isinstance(one, _KEEPERS)]
    known = gc.get_objects()
    referred.update(id(inner) for one in known for inner in gc.get_referents(one))
    alone = [
        one
        for one in known
        if issubclass(type(one), _KEEPERS) and id(one) not in referred and not _is_of_graph(one)
    ]
    reached = _objects({**variables, "under way": {"": under_way}})
    return any(
        isinstance(inner, torch.Tensor) and key not in reached
        for one in alone
        for key, inner in _objects({"": {"": one}}).items()
    )


def _is_of_graph(value: Any) -> bool:
    """Whether a graph may keep it for its backward; a sum of losses has one element."""
    return isinstance(value, torch.Tensor) and value.grad_fn is not None and value.numel() > 1


def _frames() -> Iterator[FrameType]:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


def _objects(variables: Mapping[str, Mapping[str, Any]]) -> dict[int, Any]:
    reach = Reach(variables)
    for _ in reach:
        pass
    return reach.objects
