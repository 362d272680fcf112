"""The patches by which a replay knows what ranks told each other, and what all of them do alike.

The patches by which it is known what ranks have sent each other.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from supervisor.storage.steps.replay_log import EntryKind
from supervisor.worker.core.breakers import Breaker
from supervisor.worker.core.part import Sides
from supervisor.worker.core.training_hooks import ScriptReads, Seen
from supervisor.worker.ranks.exchanges import Exchanges, FirstAverages


def watch_messages(exchanges: Exchanges, part: Breaker) -> None:
    """Patches torch.distributed for the rest of this process's life. Called once.

    Collectives are counted by torch itself.

    Args:
        exchanges: counts them.
        part: keeps its errors from the script.
    """
    if not torch.distributed.is_available():
        return
    _patch_messages(exchanges, part)
    _patch_calls_of_messages(exchanges, part)


def _patch_messages(exchanges: Exchanges, part: Breaker) -> None:
    from torch.distributed import distributed_c10d

    send, receive = distributed_c10d.isend, distributed_c10d.irecv

    @functools.wraps(send)
    def isend(
        tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
    ) -> Any:
        call = functools.partial(send, tensor, dst, group, tag, group_dst)
        place, work = counted(call, group, part, exchanges.aside)
        if place is not None:
            with part:
                exchanges.sent(place, _number(place, dst, group_dst))
        return work

    @functools.wraps(receive)
    def irecv(
        tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
    ) -> Any:
        call = functools.partial(receive, tensor, src, group, tag, group_src)
        place, work = counted(call, group, part, exchanges.aside)
        if place is not None:
            with part:
                if src is None and group_src is None:
                    exchanges.received_from_any(place, work)
                else:
                    exchanges.received(place, _number(place, src, group_src))
        return work

    for name, replacement in (("isend", isend), ("irecv", irecv)):
        setattr(distributed_c10d, name, replacement)
        setattr(torch.distributed, name, replacement)


def _patch_calls_of_messages(exchanges: Exchanges, part: Breaker) -> None:
    """What torch makes of messages of its own, and what it counts once for many of them."""
    from torch.distributed import distributed_c10d

    monitored, many = distributed_c10d.monitored_barrier, distributed_c10d.batch_isend_irecv

    @functools.wraps(monitored)
    def monitored_barrier(group: Any = None, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(monitored, group, *args, **kwargs)
        return counted(call, group, part, functools.partial(exchanges.aside, counts=1))[1]

    @functools.wraps(many)
    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        first = p2p_op_list[0] if isinstance(p2p_op_list, list) and p2p_op_list else None
        call = functools.partial(many, p2p_op_list)
        return counted(call, getattr(first, "group", None), part, exchanges.aside)[1]

    for replacement in (monitored_barrier, batch_isend_irecv):
        setattr(distributed_c10d, replacement.__name__, replacement)
        setattr(torch.distributed, replacement.__name__, replacement)


def counted(
    call: Callable[[], Any],
    group: Any,
    part: Breaker,
    count: Callable[[Any], AbstractContextManager[None]],
) -> tuple[Any, Any]:
    """Makes a call of torch within `count`; what fails there is not told to the script.

    Args:
        call: exchanges something.
        group: that it was given.
        part: keeps errors of ours from the script.
        count: is given the group, where this rank has a part in it.

    Returns:
        That group, or None, and what the call has returned.
    """
    place = counting = None
    with part:
        place = _shared(group)
        if place is not None and part.is_on:
            counting = count(place)
            counting.__enter__()
    try:
        result = call()
    finally:
        if counting is not None:
            with part:
                counting.__exit__(None, None, None)
    return place if part.is_on else None, result


def _shared(group: Any) -> Any:
    """The group of a call; None if this rank has no part in it."""
    if group is None and torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
    return group if isinstance(group, torch.distributed.ProcessGroup) else None


def _number(group: Any, rank: int | None, group_rank: int | None) -> int:
    if group_rank is not None:
        return group_rank
    assert rank is not None, "torch has accepted the call"
    return torch.distributed.get_group_rank(group, rank)


_RECEIVING = {
    "all_gather_object": "object_list",
    "gather_object": "object_gather_list",
    "broadcast_object_list": "object_list",
    "scatter_object_list": "scatter_object_output_list",
    "recv_object_list": "object_list",
    "send_object_list": None,
}
"""Functions that exchange objects of Python, and the list into which they put what comes."""

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
_JOINT = "torch.distributed.checkpoint."
"""Its modules write files of all ranks together, in a replay as well: what they exchange describes
these files, and is of no use to a script."""
_NOBODY = -1
_ALL_HAVE = frozenset({"all_gather_object", "broadcast_object_list"})
"""Behind these all ranks have the same objects."""


class AllAlike(Protocol):
    """Within it collectives are sent in a replay, too."""

    silenced: int

    def really(self) -> contextlib.AbstractContextManager[None]: ...


def watch_collectives(
    session: Seen,
    reads: Sides[ScriptReads],
    alike: AllAlike | None,
    exchanges: Exchanges,
    part: Breaker,
) -> None:
    """Patches torch.distributed for the rest of this process's life. Called once.

    Args:
        reads: what ranks tell each other is what the script reads.
        alike: of the replay under way; None for none.
        exchanges: counts what carries objects.
        part: keeps its errors from the script.
    """
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    for namespace in _NAMESPACES:  # else a replay, which looks at them, is the first to make them
        getattr(torch.ops, namespace)
    for name, into in _RECEIVING.items():
        original = getattr(distributed_c10d, name)
        count = functools.partial(counted, part=part, count=exchanges.tells)
        replacement = _told(session, reads, original, into, name in _ALL_HAVE, count)
        setattr(distributed_c10d, name, replacement)
        setattr(torch.distributed, name, replacement)
    _patch_receipt_from_any(session, reads, alike)


def _told(
    session: Seen,
    reads: Sides[ScriptReads],
    original: Callable[..., Any],
    into: str | None,
    all_have: bool,
    count: Callable[..., tuple[Any, Any]],
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def exchange(*args: Any, **kwargs: Any) -> Any:
        if not session.call_state.is_ours():
            return original(*args, **kwargs)
        call = functools.partial(original, *args, **kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return call()  # torch says what is wrong
        place = given.get(into) if into else None
        if sys._getframe(1).f_globals.get("__name__", "").startswith(_JOINT):
            return reads.now.plans(call)
        return reads.now.objects(
            place, lambda: count(call, given.get("group"))[1], all_have=all_have
        )

    return exchange


def _patch_receipt_from_any(
    session: Seen, reads: Sides[ScriptReads], alike: AllAlike | None
) -> None:
    """Whose message it was is a value that the script reads."""
    from torch.distributed import distributed_c10d

    original = distributed_c10d.recv

    @functools.wraps(original)
    def recv(
        tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
    ) -> Any:
        call = functools.partial(original, tensor, src, group, tag, group_src)
        is_known = src is not None or group_src is not None
        if is_known or not session.call_state.is_ours():
            return call()

        received: list[int] = []

        def receive() -> int:
            silenced = 0 if alike is None else alike.silenced
            try:
                received.append(call())
            except RuntimeError:
                if alike is None or alike.silenced == silenced:
                    raise
                received.append(_NOBODY)
            return received[-1]

        source = reads.now.read(EntryKind.INT, receive)
        return source if received else (receive(), source)[1]

    distributed_c10d.recv = recv
    torch.distributed.recv = recv


def watch_wrappers(alike: AllAlike | None, averages: FirstAverages, part: Breaker) -> None:
    """A wrapper that is made in the middle of a training compares the models of all ranks.

    Args:
        alike, part: see `watch_collectives`.
        averages: told of each wrapper.
    """
    if not torch.distributed.is_available():
        return
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.nullcontext() if alike is None else alike.really():
            original(self, *args, **kwargs)
        with part:
            averages.made(self)

    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign]
