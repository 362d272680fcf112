"""Nothing is sent between ranks in a fast-forward, except where all of them do the same.

A replay computes nothing that others could need, and what the script reads of a collective's result
is on the tape. Ranks that replay different shapes, or evaluate on one rank alone, make different
calls: sent for real, they would wait for each other for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from supervisor.storage.run.meeting_place import MeetingPlace

_IN_PLACE = "c10d"
_FUNCTIONAL = frozenset(
    {"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor"}
)


class SilencedCollectives(TorchDispatchMode):
    """Active from `enter` to `leave`, in the training's thread; silent from `begin` on.

    A silenced collective leaves its tensors as they are, or returns zeros of the right shapes, and
    its work is done. What comes before the first step, and what runs within `really`, is sent.

    A barrier of all ranks sends nothing either, but is one: what a rank wrote before it (a file)
    others may read behind it.

    Args:
        barrier: where all ranks wait for each other; None where they cannot.
    """

    def __init__(self, barrier: MeetingPlace | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._barrier = barrier
        self.silenced = 0
        self._is_silent = False
        self._real = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch._dynamo is imported, which takes seconds

    def enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """The training begins; may be called again."""
        self._is_silent = True

    def leave(self) -> None:
        """Called at the target. May be called again; then it does nothing."""
        self._is_silent = False
        if self._barrier is not None:
            self._barrier.leave()
        if _get_current_dispatch_mode_stack()[-1:] == [self]:  # else within one of the script's
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def really(self) -> Iterator[None]:
        """What all ranks do alike, at the same place of the replay."""
        self._real += 1
        try:
            yield
        finally:
            self._real -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        namespace = func.namespace
        if not self._is_silent or self._real:
            return func(*args, **kwargs)
        if namespace == _IN_PLACE:
            self.silenced += 1
            if self._barrier is not None and _is_of_all(func, args):
                self._barrier.wait()
            return _done_in_place(func, args)
        if namespace in _FUNCTIONAL:
            self.silenced += 1
            return _done(func, args, kwargs)
        return func(*args, **kwargs)


def _is_of_all(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether this is a barrier, and of all ranks."""
    if func._schema.name != "c10d::barrier":
        return False
    group: Any = torch.distributed.ProcessGroup.unbox(args[1])
    return int(group.size()) == torch.distributed.get_world_size()


def _done_in_place(func: Any, args: tuple[Any, ...]) -> Any:
    """What ``c10d`` operations return: their first argument and a work, a work, or nothing."""
    from torch._C._distributed_c10d import FakeWork

    returned = len(func._schema.returns)
    if not returned:
        return None
    work = FakeWork().boxed()
    return work if returned == 1 else (args[0], work)


def _done(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What functional collectives return: what they write into, or new tensors."""
    if func._schema.name.endswith("::wait_tensor"):
        return args[0]
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            return value
    if "out" in kwargs:
        return kwargs["out"]
    device = next(t.device for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor))
    on_meta = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().to("meta"), args)
    shapes = func(*on_meta, **kwargs)
    return pytree.tree_map_only(
        torch.Tensor, lambda t: torch.zeros(t.shape, dtype=t.dtype, device=device), shapes
    )
