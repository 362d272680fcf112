"""Tensors and arrays that the user's variables hold: EMA copies, hidden states, accumulators.

A fast-forward recomputes Python values by running the user's loop, but not the results of training:
those are saved under the path by which they are reached.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from supervisor.errors import pass_on
from supervisor.training_state.plain_form import from_plain
from supervisor.training_state.script_state.inside_process import HANDLES, still_under_way, wait_for
from supervisor.training_state.script_state.place import Place
from supervisor.training_state.script_state.reach import Reach
from supervisor.training_state.script_state.script_state import CALL
from supervisor.training_state.tensors import (
    bytes_of,
    local,
    outside_autograd,
    storage_of,
    write_into,
)
from supervisor.uncollected import uncollected

Stamp = tuple[Any, ...]
MAX_BYTES = 2**30
_HASH_LIMIT = 256 * 2**20
_OF_CALL = f"{CALL}."
_GRADIENT = ".grad"
"""Behind the path of a leaf that is in no model and no optimizer, or of a value between for which
the script wants it (`retain_grad`): its gradient, which adds up."""


def is_of_call(path: str) -> bool:
    """Whether it leads to something on which the call under way works."""
    return path.startswith(_OF_CALL)


def storages(tensors: Any) -> set[int]:
    """Returns the addresses of the memory behind `tensors`, as `find_held` excludes them."""
    return {address for tensor in tensors if (address := storage_of(tensor)) is not None}


def find_held(
    frames: Any,
    exclude_storages: set[int],
    *,
    call: Mapping[str, Any] | None = None,
    known: Mapping[str, Stamp] | None = None,
    max_bytes: int = MAX_BYTES,
    left_out: list[str] | None = None,
    wait_s: float = 0,
    reach: Reach | None = None,
) -> dict[str, torch.Tensor | np.ndarray[Any, Any]]:
    """Returns path → live tensor or array, in the order of the variables.

    Args:
        frames: see `Reach`; the user's frames, outermost first.
        exclude_storages: memory of parameters, buffers and optimizer states (`storages`).
        call: what the call under way works on. Of that are found what was computed for it, and what
            is no part of any variable.
        known: `stamps` from before the first step; unchanged values are static (data sets, masks)
            and left out.
        max_bytes: values beyond this are left out.
        left_out: gets a line for each of those, and for what is still under way.
        wait_s: how long an exchange between ranks is waited for whose handle a variable holds: it
            would change what is found.
        reach: to be walked instead of one of its own: of `frames` and `call`, with all places.
    """
    found: dict[str, torch.Tensor | np.ndarray[Any, Any]] = {}
    total = 0
    with outside_autograd(), uncollected():
        handles: dict[str, Any] = {}
        until = time.monotonic() + wait_s
        reach = reach or Reach(frames, at_last={CALL: call or {}})
        saveable = list(_saveable(reach, exclude_storages, bool(call), handles, until))
        if left_out is not None:
            left_out += still_under_way(handles)
        for path, value in saveable:
            if known and path in known and stamp(value) == known[path]:
                continue
            if total + _bytes(value) > max_bytes:
                if left_out is not None:
                    left_out.append(f"{path}: {_bytes(value)} bytes exceed the limit")
                continue
            total += _bytes(value)
            found[path] = value
    return found


def _saveable(
    reach: Reach,
    exclude_storages: set[int],
    has_call: bool,
    handles: dict[str, Any],
    until: float,
) -> Iterator[tuple[str, torch.Tensor | np.ndarray[Any, Any]]]:
    """`handles` gets those of exchanges between ranks, by their paths; each is waited for before
    it is asked what has come."""
    reached: set[int | None] = set()
    for place in reach.kept():
        if place.same_as:
            continue
        value = place.value
        if issubclass(type(value), HANDLES):  # `isinstance` asks the object for its `__class__`
            handles[place.path] = value
            wait_for(value, until)
        if _is_saveable(value) and (memory := storage_of(value)) not in exclude_storages:
            if has_call and memory is not None:
                if memory in reached and is_of_call(place.path):
                    continue  # a part of a variable
                reached.add(memory)
            yield place.path, value
            if _keeps_gradient(value) and _is_saveable(value.grad):
                yield place.path + _GRADIENT, value.grad


def stamps(held: Mapping[str, Any]) -> dict[str, Stamp]:
    """Returns stamps that show later whether the values of `find_held` were changed or replaced."""
    with outside_autograd():
        return {path: stamp(value) for path, value in held.items()}


def stamp(value: torch.Tensor | np.ndarray[Any, Any]) -> Stamp:
    """Address, shape, and a checksum of the content (up to 256 MiB, on the CPU).

    Elsewhere the version counter stands for the content; it misses changes through ``.data``.
    """
    if isinstance(value, np.ndarray):
        content: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return (value.ctypes.data, value.shape, xxhash.xxh3_64_intdigest(content))
    shape = tuple(value.shape)
    if value.device.type != "cpu" or _bytes(value) > _HASH_LIMIT:
        return (value.data_ptr(), shape, value._version)
    return (value.data_ptr(), shape, xxhash.xxh3_64_intdigest(bytes_of(value)))


def put_back(
    frames: Any, saved: Mapping[str, Any], call: Mapping[str, Any] | None = None
) -> list[str]:
    """Copies values to the places of the same paths; returns what could not be put back.

    A tensor or array of the same shape and dtype is written in place, so that other variables see
    the value, too; anything else is replaced.

    Args:
        frames, call: as for `find_held`, in the process that resumes.
        saved: path → tensor or array, or its plain form from a checkpoint.
    """
    waiting = dict(saved)
    problems = []
    with outside_autograd():
        for place in list(Reach(frames, at_last={CALL: call or {}})):
            gradient = (
                waiting.pop(place.path + _GRADIENT, None) if _keeps_gradient(place.value) else None
            )
            if gradient is not None:
                place.value.grad = from_plain(gradient).to(place.value.device, copy=True)
            if place.path in waiting:
                problem = _put(place, from_plain(waiting.pop(place.path)))
                if problem:
                    problems.append(f"{place.path}: {problem}")
    problems += [f"{path}: no variable leads there any more" for path in waiting]
    return problems


def _put(place: Place, value: Any) -> str:
    live = place.value
    if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor):
        if local(live).shape == value.shape and live.dtype == value.dtype:
            write_into(live, value)
            return ""
        value = value.to(live.device, copy=True).as_subclass(type(live))
    elif (
        isinstance(live, np.ndarray)
        and isinstance(value, np.ndarray)
        and live.flags.writeable
        and live.shape == value.shape
        and live.dtype == value.dtype
    ):
        np.copyto(live, value)
        return ""
    if place.replace is None:
        return "it lies in a tuple, or is a parameter, and has another shape or type now"
    try:
        place.replace(value.clone() if isinstance(value, torch.Tensor) else value)
    except BaseException as error:  # a property or __setitem__ of the user's class
        pass_on(error)
        return f"cannot be replaced ({type(error).__name__}: {error})"
    return ""


def _keeps_gradient(value: Any) -> bool:
    is_tensor = isinstance(value, torch.Tensor) and value.requires_grad
    return is_tensor and (value.is_leaf or value.retains_grad)


def _is_saveable(value: Any) -> bool:
    if issubclass(type(value), np.ndarray):
        return not value.dtype.hasobject and value.dtype.names is None and value.size > 0
    return (
        issubclass(type(value), torch.Tensor)
        and value.layout == torch.strided
        and value.device.type != "meta"
        and not isinstance(value, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer))
        and _has_memory(value)
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    """Returns False for a wrapper of a transform (`torch.func`), which has no memory of its own."""
    try:
        tensor.data_ptr()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    return int(value.numel()) * int(value.element_size())
