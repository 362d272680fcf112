"""The patches by which a training of several ranks is noticed, whoever started them."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Protocol

import torch


class RanksSeen(Protocol):
    """Who is told of ranks; see `supervisor.worker.session.several_ranks`."""

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
