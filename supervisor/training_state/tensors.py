"""Reads and writes tensors outside autograd.

Whether a restored state is the saved one, bit for bit.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from supervisor.training_state import device_copies

_SINGLE = frozenset({bool, int, float, str, bytes, type(None)})


@contextlib.contextmanager
def outside_autograd() -> Iterator[None]:
    """Records no graph, and makes normal tensors even within ``torch.inference_mode()``.

    A tensor made in inference mode could never be updated in place by the optimizer. What a class
    derived from torch's does at its operations is left out: it may refuse some, or count them.
    """
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        yield


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what this rank holds of `tensor` (a DTensor's shard), detached, memory shared; of a
    class that a script or a library derives from torch's, a tensor of torch's."""
    if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
        return tensor.detach()
    with torch._C.DisableTorchFunctionSubclass():  # which may refuse, or count what it is asked
        detached = tensor.detach()
        to_local = getattr(detached, "to_local", None)
        found: torch.Tensor = to_local() if to_local is not None else detached
        if type(found) is torch.Tensor or is_traceable_wrapper_subclass(found):
            return found
        return found.as_subclass(torch.Tensor)


def cloned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a clone, within its graph, of the same class and with the same attributes; a class
    that is derived from torch's is not asked, and may refuse to be copied."""
    if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
        return tensor.clone()
    with torch._C.DisableTorchFunctionSubclass():
        copied = tensor.clone()
        if type(copied) is not torch.Tensor:
            return copied
        copied = copied.as_subclass(type(tensor))
    vars(copied).update(vars(tensor))
    return copied


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Returns the content of a strided tensor; of a DTensor this rank's shard."""
    return memory_of(local(tensor).cpu().resolve_conj().resolve_neg().contiguous())


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor on the CPU, memory shared, to be read at once.

    Not by `Tensor.numpy`: torch lets nobody resize the memory of which that was asked ever again,
    and a script may want to (`resize_`, ``out=``; FSDP2 does so with gathered parameters).
    """
    if type(tensor) is not torch.Tensor:  # made of others, it has no memory of its own
        return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    if not tensor.numel() or end > tensor.untyped_storage().nbytes():  # nothing, or set free
        return memoryview(b"")
    size = tensor.numel() * tensor.element_size()
    memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    memory.owner = tensor
    return memoryview(memory).cast("B")


ORDINARY_TYPES = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
"""Those that all of torch knows, and that it pickles with a class of storage of their own."""
SMALL = 1024
"""Bytes of a tensor up to which its copy may share memory with others."""
Copies = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Id of a tensor → it, so that nothing else gets its id, and its copy."""


def is_small(tensor: torch.Tensor) -> bool:
    """Whether it is for `copied_together`: ordinary, contiguous, on the CPU, and not empty."""
    return (
        (type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and 0 < tensor.nbytes <= SMALL
        and tensor.is_contiguous()
        and tensor.dtype in ORDINARY_TYPES
        and not tensor.is_neg()
    )


def copied_together(tensors: Iterable[torch.Tensor]) -> Copies:
    """Copies small tensors; those of one type lie in one memory, and cost 1 us each."""
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault(tensor.dtype, []).append(tensor)
    found: Copies = {}
    for alike in by_type.values():
        together = torch._C._nn.flatten_dense_tensors(alike)
        views = torch._C._nn.unflatten_dense_tensors(together, alike)
        found.update(zip(map(id, alike), zip(alike, views, strict=True), strict=True))
    return found


def write_into(target: torch.Tensor, saved: torch.Tensor) -> None:
    """Copies `saved` into the memory of `target` without changing its version counter.

    A live graph of the user's (truncated backpropagation) keeps working. Along the dimensions in
    which `target` is expanded (`x.expand(4, 3)`), all values are the first one. See
    `device_copies.written_together`.
    """
    memory = local(target.data)
    for dimension, stride in enumerate(memory.stride() if memory.layout == torch.strided else ()):
        if stride == 0 and memory.shape[dimension] > 1:
            memory, saved = (one.narrow(dimension, 0, 1) for one in (memory, saved))
    device_copies.write(memory, saved)


def walk(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every leaf of nested plain containers with its path, dict keys sorted by text."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from walk(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk(item, f"{name}.{index}" if name else str(index))
    else:
        yield name, value


def walk_tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Like `walk`, tensors only."""
    for path, leaf in walk(value, name):
        if isinstance(leaf, torch.Tensor):
            yield path, leaf


def tensors_within(value: Any) -> list[torch.Tensor]:
    """Returns the tensors of nested containers in their order, of all kinds that torch's pytree
    knows; for plain ones in a fraction of its time."""
    if isinstance(value, torch.Tensor):
        return [value]
    kind = type(value)
    if kind in _SINGLE:
        return []
    if kind is not tuple and kind is not list and kind is not dict:
        leaves = pytree.tree_leaves(value)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    found: list[torch.Tensor] = []
    for item in value.values() if kind is dict else value:
        found += tensors_within(item)
    return found


def storage_of(value: Any) -> int | None:
    """The address of the memory behind a strided tensor; None for anything else."""
    is_plain = type(value) is torch.nn.Parameter or type(value) is torch.Tensor
    if not (is_plain or isinstance(value, torch.Tensor)):
        return None
    try:
        value = value if is_plain else local(value)
        if value.layout != torch.strided:
            return None
        return value.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError, ValueError):  # ValueError: a lazy layer's, not made
        return None


def first_difference(saved: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Returns the path of the first value that differs, None if none does.

    Bits are compared, so equal NaNs are equal. Device tensors are copied to the host one by one.

    Args:
        saved: parts of a state, from `read_state` or `copy_state`.
        live: the same parts, from `TrainingState.capture`.
    """
    with outside_autograd():
        for one, other in zip_longest(walk(dict(saved)), walk(dict(live))):
            if one is None or other is None:
                return str((one or other)[0])
            if one[0] != other[0]:
                return str(min(one[0], other[0]))  # both are sorted: it is missing in the other
            if not _is_same(one[1], other[1]):
                return str(one[0])
    return None


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or local(one).shape != local(other).shape:
            return False
        return torch.equal(_bits(one), _bits(other))
    # repr tells -0.0 from 0.0 and 1 from True, and finds NaN equal to itself.
    return type(one) is type(other) and repr(one) == repr(other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = local(tensor).cpu()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    return plain.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def fresh(value: Any, device: torch.device | None = None) -> Any:
    """Copies the tensors of nested containers, to `device` unless None."""
    return pytree.tree_map_only(
        torch.Tensor, lambda one: one.detach().to(device or one.device, copy=True), value
    )
