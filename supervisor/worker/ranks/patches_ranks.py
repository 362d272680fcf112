"""The patches by which a training of several ranks is noticed, whoever started them.

A destroyed process group is let go of where that cannot hang.

Some objects of torch, `DistributedDataParallel`'s reducer among them, free a group's last reference
while they hold the GIL. The group then waits for its thread, and where that thread is just freeing
a tensor that Python knows, it waits for the GIL: the rank hangs at the end of its script. A
reference of Python is freed without the GIL, so the last one is kept here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections import deque
from typing import Any, Protocol

import torch


class RanksSeen(Protocol):
    """Who is told of ranks; see `supervisor.worker.ranks.several_ranks`."""

    def joined(self, world_size: int) -> None: ...

    def joined_in_child(self, world_size: int, rank: int) -> None: ...

    def started(self, processes: int) -> None: ...


def watch_ranks(ranks: RanksSeen) -> None:
    """Patches what joins or starts ranks, for the rest of this process's life."""
    if torch.distributed.is_available():
        _patch_init(ranks)
    _patch_spawn(ranks)


def begin_file_stores_anew(attempt: int) -> None:
    """Patches torch.distributed for the rest of this process's life. Called once in each rank.

    A script may have its ranks meet in a file (``init_method="file://..."``, `FileStore`). Ranks
    that are killed leave it behind, and whoever meets in it then is given the addresses of the
    dead. So the ranks of each attempt but the first add its number to the name.

    Args:
        attempt: of the run, the same on all ranks.
    """
    if attempt == 1 or not torch.distributed.is_available():
        return
    from torch._C._distributed_c10d import FileStore

    class FileStoreOfAttempt(FileStore):
        def __init__(self, file_name: str, *args: Any, **kwargs: Any) -> None:
            super().__init__(f"{file_name}.attempt_{attempt}", *args, **kwargs)

    # The module of this name is hidden behind its function.
    for module in (torch.distributed, sys.modules["torch.distributed.rendezvous"]):
        module.FileStore = FileStoreOfAttempt  # type: ignore[attr-defined]


def _patch_init(ranks: RanksSeen) -> None:
    from torch.distributed import distributed_c10d

    original = distributed_c10d.init_process_group
    process = os.getpid()

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        size = torch.distributed.get_world_size()
        if size > 1 and os.getpid() == process:
            ranks.joined(size)
        elif size > 1:
            ranks.joined_in_child(size, torch.distributed.get_rank())
        return result

    distributed_c10d.init_process_group = init_process_group
    torch.distributed.init_process_group = init_process_group


def _patch_spawn(ranks: RanksSeen) -> None:
    module = sys.modules.get("torch.multiprocessing.spawn")
    original = getattr(module, "start_processes", None)
    if module is None or original is None:
        return
    process = os.getpid()

    @functools.wraps(original)
    def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **named: Any) -> Any:
        if os.getpid() == process:
            ranks.started(nprocs)
        return original(fn, args, nprocs, *more, **named)

    module.start_processes = start_processes  # type: ignore[attr-defined]
    torch.multiprocessing.start_processes = start_processes  # type: ignore[attr-defined]


_KEPT_GROUPS = 64
"""A script that makes and destroys groups without end keeps no more of their sockets open."""


def patch_group_ends() -> None:
    """Called once in each worker, before the script; nothing where torch has no process groups."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    kept = deque[Any](maxlen=_KEPT_GROUPS)
    atexit.register(kept.clear)
    init, destroy = distributed_c10d.init_process_group, distributed_c10d.destroy_process_group

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        kept.clear()  # a new group may want the port that an old one's store has
        return init(*args, **kwargs)

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # without them it ends as with plain torch
            kept.extend(group for group in distributed_c10d._world.pg_map if group not in kept)
        return destroy(*args, **kwargs)

    for module in (distributed_c10d, torch.distributed):
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]
