"""The patches by which it is known what ranks have sent each other."""

from __future__ import annotations

import functools
from typing import Any

import torch

from supervisor.worker.group.exchanges import Exchanges


def watch_messages(exchanges: Exchanges) -> None:
    """Patches torch.distributed for the rest of this process's life. Called once.

    Collectives are counted by torch itself.
    """
    if not torch.distributed.is_available():
        return
    _patch_messages(exchanges)
    _patch_calls_of_messages(exchanges)


def _patch_messages(exchanges: Exchanges) -> None:
    from torch.distributed import distributed_c10d

    send, receive = distributed_c10d.isend, distributed_c10d.irecv

    @functools.wraps(send)
    def isend(
        tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
    ) -> Any:
        place = _shared(group)
        if place is None:
            return send(tensor, dst, group, tag, group_dst)
        with exchanges.aside(place):
            work = send(tensor, dst, group, tag, group_dst)
        exchanges.sent(place, _number(place, dst, group_dst))
        return work

    @functools.wraps(receive)
    def irecv(
        tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
    ) -> Any:
        place = _shared(group)
        if place is None:
            return receive(tensor, src, group, tag, group_src)
        with exchanges.aside(place):
            work = receive(tensor, src, group, tag, group_src)
        if src is None and group_src is None:
            exchanges.received_from_any(place, work)
        else:
            exchanges.received(place, _number(place, src, group_src))
        return work

    for name, replacement in (("isend", isend), ("irecv", irecv)):
        setattr(distributed_c10d, name, replacement)
        setattr(torch.distributed, name, replacement)


def _patch_calls_of_messages(exchanges: Exchanges) -> None:
    """What torch makes of messages of its own, and what it counts once for many of them."""
    from torch.distributed import distributed_c10d

    monitored, many = distributed_c10d.monitored_barrier, distributed_c10d.batch_isend_irecv

    @functools.wraps(monitored)
    def monitored_barrier(group: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = _shared(group)
        if place is None:
            return monitored(group, *args, **kwargs)
        with exchanges.aside(place, counts=1):
            return monitored(group, *args, **kwargs)

    @functools.wraps(many)
    def batch_isend_irecv(p2p_op_list: Any) -> Any:
        place = _shared(p2p_op_list[0].group) if p2p_op_list else None
        if place is None:
            return many(p2p_op_list)
        with exchanges.aside(place):
            return many(p2p_op_list)

    for replacement in (monitored_barrier, batch_isend_irecv):
        setattr(distributed_c10d, replacement.__name__, replacement)
        setattr(torch.distributed, replacement.__name__, replacement)


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
