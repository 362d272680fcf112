"""Nothing is sent between ranks in a fast-forward, except where all of them do the same.

A replay computes nothing that others could need, and what the script reads of a collective's result
is on the replay log. Ranks that replay different shapes, or evaluate on one rank alone, make
different calls: sent for real, they would wait for each other for ever.

The namespaces of torch's operators in which ranks exchange something. Objects of Python that ranks
have told each other, on the replay log: plain values and tensors.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from supervisor.errors import ReplayError
from supervisor.storage.run.mailboxes import NodeBarrier
from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.plain_form import from_plain, to_plain
from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.ranks.exchanges import CommonBeginning, Exchanges

IN_PLACE = "c10d"
"""What `torch.distributed` calls: writes into the tensors that it is given."""
FUNCTIONAL = frozenset(
    {"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor"}
)
"""Returns new tensors."""
COLLECTIVES = FUNCTIONAL | {IN_PLACE}


_WRAPPING = "_c10d_functional::_wrap_tensor_autograd"
"""Exchanges nothing: makes of what a functional collective returns what can be waited for."""
_RECEIVES = frozenset(
    f"c10d::{name}"
    for name in (
        *("recv_", "recv_any_source_", "scatter_", "gather_", "alltoall_", "alltoall_base_"),
        *("allgather_", "_allgather_base_", "allgather_coalesced_"),
        *("allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_"),
        "reduce_scatter_tensor_coalesced_",
    )
)
"""Operations whose first argument is what comes."""

_TELL_NOTHING = frozenset(
    f"c10d::{name}"
    for name in (
        *("barrier", "send", "recv_", "recv_any_source_", "reduce_scatter_"),
        *("_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
    )
)
"""Operations whose handles do not tell with gloo what has come."""


class SilencedCollectives(TorchDispatchMode):
    """Active from `enter` to `leave`, in the training's thread; silent from `begin` on.

    A silenced collective leaves its tensors as they are, or returns zeros of the right shapes, and
    its work is done. What all ranks that take part do before their first step, and what runs within
    `really`, is sent.

    A barrier of all ranks sends nothing either, but is one: what a rank wrote before it (a file)
    others may read behind it.

    Args:
        barrier: where all ranks wait for each other; None where they cannot.
        exchanges: counts what this rank exchanges.

    Attributes:
        beginning: what is sent before the first step; None for all.
        silent_early: called when something is not, before `begin`.
    """

    def __init__(
        self,
        barrier: NodeBarrier | None = None,
        exchanges: Exchanges | None = None,
        beginning: CommonBeginning | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._barrier = barrier
        self._exchanges = exchanges
        self.beginning = beginning
        self.silent_early: Callable[[], None] = lambda: None
        self.silenced = 0
        self._is_silent = False
        self._real = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch._dynamo is imported, which takes seconds

    def enter(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def wait_for_all(self) -> None:
        """Returns when all ranks of the node have called this, before their script starts."""
        if self._barrier is not None:
            self._barrier.wait()

    def start(self) -> None:
        """The training begins; may be called again."""
        self._is_silent = True
        self.beginning = None

    def leave(self) -> None:
        """Called at the target. May be called again; then it does nothing."""
        self._is_silent = False
        self.beginning = None
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
        if self._real or not (self._is_silent or self._is_early(func, args, kwargs)):
            return func(*args, **kwargs)
        if namespace == IN_PLACE:
            self.silenced += 1
            if self._barrier is not None and _is_of_all(func, args):
                self._barrier.wait()
            return _done_in_place(func, args)
        if namespace in FUNCTIONAL and func._schema.name != _WRAPPING:
            self.silenced += 1
            return _done(func, args, kwargs)
        return func(*args, **kwargs)

    def _is_early(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether another rank comes to this only when it trains."""
        if self.beginning is None or self._exchanges is None:
            return False
        group = _group_of(func, args, kwargs)
        if group is None or self._exchanges.is_common(
            self.beginning, group, func._schema.name.rpartition("::")[2], args
        ):
            return False
        self.silent_early()
        return True


def _group_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the group in which an operation exchanges something; None if it is none such."""
    if func.namespace != IN_PLACE and func.namespace not in FUNCTIONAL:
        return None
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = next((given[name] for name in ("process_group", "group_name") if name in given), None)
    return None if found is None else _group_at(found)


def _group_at(argument: Any) -> Any:
    """Returns the group that an operation was given."""
    if isinstance(argument, str):
        found: Any = torch._C._distributed_c10d
        return found._resolve_process_group(argument)
    if isinstance(argument, torch.distributed.ProcessGroup):
        return argument
    return torch.distributed.ProcessGroup.unbox(argument)


def _is_of_all(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether this is a barrier, and of all ranks."""
    if func._schema.name != "c10d::barrier":
        return False
    return int(_group_at(args[1]).size()) == torch.distributed.get_world_size()


def _done_in_place(func: Any, args: tuple[Any, ...]) -> Any:
    """What ``c10d`` operations return: their first argument and a work, a work, or nothing."""
    returned = len(func._schema.returns)
    came = pytree.tree_leaves(args[0])
    if _receives(func, args):
        for tensor in came:
            _settle(tensor)
    if not returned:
        return None
    work = _work_done([] if func._schema.name in _TELL_NOTHING else came).boxed()
    return work if returned == 1 else (args[0], work)


def _work_done(came: list[torch.Tensor]) -> Any:
    """Returns the handle of an exchange that is over, also for those who ask it or its future."""
    made: Any = torch._C._distributed_c10d
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(came)
    return made._create_work_from_future(future)


def _receives(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the tensors of the first argument are to hold what others have sent."""
    name = func._schema.name
    if name == "c10d::broadcast_":
        return bool(_group_at(args[1]).rank() != args[2])
    return name in _RECEIVES


def _settle(received: torch.Tensor) -> None:
    """Memory that nobody has written may hold what the script's own operations refuse: indices
    beyond a table, NaN for a distribution. Bytes are left: the state of a generator that the ranks
    make the same is none if it is zeros."""
    if received.is_floating_point() or received.is_complex():
        received.nan_to_num_(0.0, 0.0, 0.0)
    elif received.dtype is not torch.uint8:
        received.zero_()


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


LARGEST = 1 << 23
"""Bytes of one exchange; more are data rather than figures."""
_WHOLE, _ASK_AGAIN, _LOST = b"w", b"a", b"l"


def note_objects(
    replay_log: ReplayLogWriter, place: list[Any] | None, result: Any, *, all_have: bool
) -> None:
    """Writes what came of an exchange of objects on the replay log.

    Args:
        place: the list into which they came; None for none.
        result: what the exchange has returned.
        all_have: every rank has the same ones behind it: what cannot be recorded is exchanged again
            in a replay.
    """
    left_out: list[str] = []
    came = to_plain([result, list(place or ())], "objects", left_out)
    data = _packed(came) if not left_out else b""
    if left_out or len(data) > LARGEST:
        why = left_out[0] if left_out else f"{len(data):,} bytes are too many"
        replay_log.append(EntryKind.OBJECTS, (_ASK_AGAIN if all_have else _LOST) + why.encode())
    else:
        replay_log.append(EntryKind.OBJECTS, _WHOLE + data)


def recorded_objects(
    replay_log: ReplayLogReader, place: list[Any] | None, exchange: Callable[[], Any]
) -> Any:
    """Returns and puts into `place` what the recorded run got here.

    Args:
        exchange: does so for real, on all ranks.

    Raises:
        ReplayError: nothing was exchanged here, or it was not recorded.
    """
    entry = replay_log.take(EntryKind.OBJECTS)
    kind, data = entry[:1], entry[1:]
    if kind == _ASK_AGAIN:
        return exchange()
    if kind == _LOST:
        raise ReplayError(f"what another rank told was not recorded: {data.decode()}")
    plain = torch.load(io.BytesIO(data), weights_only=True)
    result, came = from_plain(plain)
    if place is not None:
        place[:] = came
    return result


def _packed(plain: Any) -> bytes:
    file = io.BytesIO()
    with outside_autograd():
        torch.save(plain, file)
    return file.getvalue()
