"""The collectives that can be kept and made again, at the device key where torch makes them.

DDP, FSDP2, functional collectives and objects all come by here; what a script exchanges within
`torch.inference_mode` does not, and is made in its own groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

NAMESPACE, KEY = "c10d", "AutogradCPU"


@dataclass(frozen=True, slots=True)
class KeptOperation:
    """Where the tensors of an operation of ``c10d`` are among its arguments.

    Attributes:
        gives: place of what this rank gives; None for none.
        gets: place of what it gets.
        is_of_all: it ends on no rank before all of its group have entered it.
    """

    gives: int | None
    gets: int | None
    is_of_all: bool = True


KEPT = {
    "allreduce_": KeptOperation(0, 0),
    "allreduce_coalesced_": KeptOperation(0, 0),
    "broadcast_": KeptOperation(0, 0, is_of_all=False),
    "allgather_": KeptOperation(1, 0),
    "_allgather_base_": KeptOperation(1, 0),
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
    """

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, list(arguments)
        self.operation = KEPT.get(name)
        self._group_at = _group_place(name)
        self.group: Any = torch.distributed.ProcessGroup.unbox(self.arguments[self._group_at])

    @property
    def gives(self) -> list[torch.Tensor]:
        place = None if self.operation is None else self.operation.gives
        return [] if place is None else list(_tensors(self.arguments[place]))

    @property
    def gets(self) -> list[torch.Tensor]:
        place = None if self.operation is None else self.operation.gets
        return [] if place is None else list(_tensors(self.arguments[place]))

    @property
    def is_plain(self) -> bool:
        """Whether all its tensors are dense ones of the processor."""
        return all(
            tensor.layout == torch.strided and tensor.device.type == "cpu"
            for tensor in (*self.gives, *self.gets)
        )

    def signature(self, group: str) -> int:
        """Returns one number for the operation, its group, shapes and plain arguments."""
        plain = [each for each in self.arguments if isinstance(each, int)][:2]
        shapes = [(tuple(t.shape), str(t.dtype)) for t in (*self.gives, *self.gets)]
        return xxhash.xxh3_64_intdigest(repr((self.name, group, plain, shapes)).encode())

    def make(self, group: Any) -> Any:
        """Makes it in this group, as torch does, and waits for it. Without the interpreter's lock:
        gloo's threads need it to let tensors go.

        Raises:
            RuntimeError: another rank is gone, or it failed.
        """
        given = list(self.arguments)
        given[self._group_at] = group.boxed()
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
            given[place] = _copied(given[place])  # type: ignore[index]
        call = Call(self.name, tuple(given))
        fill(call.gives, gave)
        return call

    def ended(self, came: list[torch.Tensor]) -> Any:
        """Returns what the operation returns, its work done."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(came)
        c10d: Any = torch._C._distributed_c10d
        work = c10d._create_work_from_future(future).boxed()
        returns = len(_operator(self.name)._schema.returns)
        return work if returned_alone(returns) else (self.arguments[0], work)


def returned_alone(returns: int) -> bool:
    """Whether an operation returns its work and nothing else."""
    return returns == 1


def fill(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copies each value into its tensor."""
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def _operator(name: str) -> Any:
    return getattr(torch.ops.c10d, name).default


def _group_place(name: str) -> int:
    if name not in _PLACES:
        names = [argument.name for argument in _operator(name)._schema.arguments]
        _PLACES[name] = names.index("process_group")
    return _PLACES[name]


_PLACES: dict[str, int] = {}


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    else:
        for each in found:
            yield from _tensors(each)


def _copied(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return found.clone()
    return [_copied(each) for each in found]
