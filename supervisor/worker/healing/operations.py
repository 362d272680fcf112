"""The collectives that can be kept and made again, at the device key where torch makes them.

DDP, FSDP2, functional collectives and objects all come by here; what a script exchanges within
`torch.inference_mode` does not, and is made in its own groups.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

NAMESPACE, KEY = "c10d", "AutogradCPU"


class Keeps(enum.Enum):
    """What one rank keeps of a collective, so that each can be given all that it got.

    ALL: what it got.
    PART: of what all ranks got alike, each keeps another part.
    GIVEN: what it gave; those of all ranks one after the other are what each got.
    """

    ALL = "all"
    PART = "part"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class KeptOperation:
    """Where the tensors of an operation of ``c10d`` are among its arguments.

    Attributes:
        gives: place of what this rank gives; None for none.
        gets: place of what it gets.
        keeps: see `Keeps`.
        is_of_all: it ends on no rank before all of its group have entered it.
    """

    gives: int | None
    gets: int | None
    keeps: Keeps = Keeps.ALL
    is_of_all: bool = True


KEPT = {
    "allreduce_": KeptOperation(0, 0, Keeps.PART),
    "allreduce_coalesced_": KeptOperation(0, 0, Keeps.PART),
    "broadcast_": KeptOperation(0, 0, is_of_all=False),
    "allgather_": KeptOperation(1, 0, Keeps.GIVEN),
    "_allgather_base_": KeptOperation(1, 0, Keeps.GIVEN),
    "allgather_into_tensor_coalesced_": KeptOperation(1, 0),
    "reduce_scatter_": KeptOperation(1, 0),
    "_reduce_scatter_base_": KeptOperation(1, 0),
    "reduce_scatter_tensor_coalesced_": KeptOperation(1, 0),
    "barrier": KeptOperation(None, None),
}
"""Name → where its tensors are."""

OTHERS = (
    *("send", "recv_", "recv_any_source_", "monitored_barrier_", "reduce_", "gather_", "scatter_"),
    *("alltoall_", "alltoall_base_", "allgather_coalesced_"),
)
"""Made as ever; a training that uses one of these is not healed."""


class Call:
    """One call of an operation.

    Args:
        name: of the operation.
        arguments: all that torch has given.

    Attributes:
        gives, gets: its tensors.
        is_in_place: what it gets takes the place of what it gives.
        is_plain: all of them are dense ones of the processor.
    """

    def __init__(self, name: str, arguments: Sequence[Any]) -> None:
        self.name, self.arguments = name, arguments
        self.operation = operation = KEPT.get(name)
        self.group: Any = torch.distributed.ProcessGroup.unbox(arguments[_group_place(name)])
        gives, gets = (None, None) if operation is None else (operation.gives, operation.gets)
        self.gives = [] if gives is None else _tensors(arguments[gives])
        self.is_in_place = gives == gets
        self.gets = self.gives if gets is None or self.is_in_place else _tensors(arguments[gets])
        self.is_plain = all(map(_is_plain, (*self.gives, *self.gets)))

    def signature(self, group: str) -> int:
        """Returns one number for the operation, its group, shapes and plain arguments."""
        plain = [each for each in self.arguments if isinstance(each, int)][:2]
        shapes = [(each.shape, each.dtype) for each in (*self.gives, *self.gets)]
        return _number_of(self.name, group, *plain, *shapes)

    def share(self) -> tuple[Sequence[torch.Tensor], int, int]:
        """Returns what this rank keeps of it: which tensors, which part of them, of how many."""
        assert self.operation is not None
        keeps = self.operation.keeps
        if keeps is Keeps.PART:
            return self.gets, self.group.rank(), self.group.size()
        return (self.gives if keeps is Keeps.GIVEN else self.gets), 0, 1

    def make(self, group: Any) -> Any:
        """Makes it in this group, as torch does, and waits for it. Without the interpreter's lock:
        gloo's threads need it to let tensors go.

        Raises:
            RuntimeError: another rank is gone, or it failed.
        """
        given = list(self.arguments)
        given[_group_place(self.name)] = group.boxed()
        with torch._C._AutoDispatchBelowAutograd():
            made = _operator(self.name)(*given)
        if self.operation is not None:
            torch.distributed.Work.unbox(made[-1] if isinstance(made, tuple) else made).wait()
        return made

    def again(self, gave: Sequence[torch.Tensor]) -> Call:
        """Returns the same call with memory of its own, and what this rank gave then."""
        operation, given = self.operation, list(self.arguments)
        assert operation is not None
        for place in {operation.gives, operation.gets} - {None}:
            given[place] = _like(given[place])  # type: ignore[index]
        call = Call(self.name, given)
        fill(call.gives, gave)
        return call

    def ended(self) -> Any:
        """Returns what the operation returns, its work done."""
        future: Any = torch._C.Future([])
        future.set_result(self.gets)
        c10d: Any = torch._C._distributed_c10d
        work = c10d._create_work_from_future(future).boxed()
        return work if _returns(self.name) == 1 else (self.arguments[0], work)


@torch.no_grad()
def fill(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copies each value into its tensor."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


@functools.cache
def _operator(name: str) -> Any:
    return getattr(torch.ops.c10d, name).default


@functools.cache
def _group_place(name: str) -> int:
    return [each.name for each in _operator(name)._schema.arguments].index("process_group")


@functools.cache
def _returns(name: str) -> int:
    return len(_operator(name)._schema.returns)


@functools.lru_cache(maxsize=1024)
def _number_of(*what: Any) -> int:
    return xxhash.xxh3_64_intdigest(repr(what).encode())


def _is_plain(tensor: torch.Tensor) -> bool:
    is_dense = tensor.is_cpu and tensor.layout is torch.strided
    return is_dense and not tensor.is_conj() and not tensor.is_neg()


def _tensors(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for each in found for tensor in _tensors(each)]


def _like(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return torch.empty_like(found)
    return [_like(each) for each in found]
