"""The patches by which it is known what ranks have sent each other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from supervisor.worker.ground.error_barrier import Breaker
from supervisor.worker.group.exchanges import Exchanges


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
