"""The collectives that can be kept and made again, where torch chooses the device that makes them.

All come by here: DDP's, FSDP2's, functional ones, those of objects, within `torch.inference_mode`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import xxhash

NAMESPACE, KEY = "c10d", "BackendSelect"
GIVES_AND_GETS: dict[str, tuple[int | None, int | None]] = {
    "allreduce_": (0, 0),
    "allreduce_coalesced_": (0, 0),
    "broadcast_": (0, 0),
    "allgather_": (1, 0),
    "_allgather_base_": (1, 0),
    "allgather_into_tensor_coalesced_": (1, 0),
    "reduce_scatter_": (1, 0),
    "_reduce_scatter_base_": (1, 0),
    "reduce_scatter_tensor_coalesced_": (1, 0),
    "barrier": (None, None),
}
"""Operation of ``c10d`` → places among its arguments of what this rank gives and gets."""
OTHERS = (
    *("send", "recv_", "recv_any_source_", "monitored_barrier_", "reduce_", "gather_", "scatter_"),
    *("alltoall_", "alltoall_base_", "allgather_coalesced_"),
)
"""Made as ever; a training that uses one of these is not healed."""
LARGE = 1 << 16
"""Bytes from which on a copy is avoided where it can be."""


class Operation:
    """An operation as torch makes it.

    Args:
        name: in ``c10d``.

    Attributes:
        is_kept: whether it can be kept and made again.
        gives, gets: see `GIVES_AND_GETS`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_kept = name in GIVES_AND_GETS
        self.gives, self.gets = GIVES_AND_GETS.get(name, (None, None))
        self._torchs: Any = getattr(torch.ops.c10d, name).default
        arguments = [argument.name for argument in self._torchs._schema.arguments]
        self.group_at = arguments.index("process_group")
        self.async_at = arguments.index("async_op") if "async_op" in arguments else None
        self.returns = len(self._torchs._schema.returns)

    def make(self, arguments: tuple[Any, ...]) -> Any:
        """As torch; without the interpreter's lock, which gloo's threads need to let tensors go."""
        return self._torchs._op_dk(torch._C.DispatchKey.CPU, *arguments)


class Call:
    """One call of an operation.

    Args:
        operation: that is called.
        arguments: all that torch has given.

    Attributes:
        boxed, group: of the script, as operations take it and as itself.
        gives, gets: dense tensors of what this rank gives and gets.
        is_plain: they all are dense ones of the processor.
    """

    def __init__(self, operation: Operation, arguments: tuple[Any, ...]) -> None:
        self.operation, self.arguments = operation, arguments
        self.name = operation.name
        self.boxed: Any = arguments[operation.group_at]
        self.group: Any = torch.distributed.ProcessGroup.unbox(self.boxed)
        gives, gets = operation.gives, operation.gets
        self.gives = [] if gives is None else list(_tensors(arguments[gives]))
        self.gets = self.gives
        if gets != gives:
            self.gets = list(_tensors(arguments[gets]))  # type: ignore[index]
        self.is_plain = all(
            tensor.layout is torch.strided and tensor.is_cpu for tensor in self.gives
        ) and (
            gets == gives
            or all(tensor.layout is torch.strided and tensor.is_cpu for tensor in self.gets)
        )

    @property
    def is_in_place(self) -> bool:
        """Whether what this rank gives is lost by it."""
        return self.gets is self.gives

    @property
    def is_waited_for(self) -> bool:
        """Whether the caller waits for it at once."""
        at = self.operation.async_at
        return at is None or (at < len(self.arguments) and not self.arguments[at])

    def signature(self, group: str) -> int:
        """Returns one number for the operation, its group, shapes and plain arguments."""
        plain = [each for each in self.arguments if type(each) is int][:2]
        tensors = self.gives if self.is_in_place else [*self.gives, *self.gets]
        key = (self.name, group, *plain, *[(t.shape, t.dtype) for t in tensors])
        found = _SIGNATURES.get(key)
        if found is None:
            found = _SIGNATURES[key] = xxhash.xxh3_64_intdigest(repr(key).encode())
        return found

    def split(self) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """Returns what others gave it, and where it gets back what it gave itself; None where that
        is no part on its own."""
        if self.name == "_allgather_base_" and self.gives[0].nbytes >= LARGE:
            (gets,), size = self.gets, self.gives[0].numel()
            if gets.is_contiguous():
                flat, at = gets.view(-1), self.group.rank() * size
                return [flat[:at], flat[at + size :]], flat[at : at + size]
        return self.gets, None

    def make(self, boxed: Any) -> Any:
        """Begins it in this group, as torch does, and returns what torch returns.

        Raises:
            RuntimeError: another rank is gone, or it failed.
        """
        at = self.operation.group_at
        given = (*self.arguments[:at], boxed, *self.arguments[at + 1 :])
        return self.operation.make(given)

    def work_of(self, made: Any) -> Any:
        """Returns the work in what `make` has returned."""
        return torch.distributed.Work.unbox(made if self.operation.returns == 1 else made[-1])

    def again(self, *, fills: bool) -> Call:
        """Returns the same call with memory of its own for what it gets.

        Args:
            fills: also for what it gives; the caller fills that.
        """
        operation, given = self.operation, list(self.arguments)
        for place in {operation.gets, operation.gives if fills else operation.gets} - {None}:
            given[place] = _like(given[place])  # type: ignore[index]
        return Call(operation, tuple(given))

    def ended(self, future: torch.futures.Future[Any] | None = None) -> Any:
        """Returns what the operation returns.

        Args:
            future: ends with it; None: it has ended.
        """
        if future is None:
            future = torch.futures.Future()
            future.set_result(self.gets)
        c10d: Any = torch._C._distributed_c10d
        work = c10d._create_work_from_future(future).boxed()
        return work if self.operation.returns == 1 else (self.arguments[0], work)


_SIGNATURES: dict[Any, int] = {}


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    else:
        for each in found:
            yield from _tensors(each)


def _like(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return torch.empty_like(found, memory_format=torch.contiguous_format)
    return [_like(each) for each in found]
