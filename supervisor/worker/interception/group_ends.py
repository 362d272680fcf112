"""A destroyed process group is let go of where that cannot hang.

Some objects of torch, `DistributedDataParallel`'s reducer among them, free a group's last reference
while they hold the GIL. The group then waits for its thread, and where that thread is just freeing
a tensor that Python knows, it waits for the GIL: the rank hangs at the end of its script. A
reference of Python is freed without the GIL, so the last one is kept here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
from collections import deque
from typing import Any

import torch

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
