"""Ways to train that a resume would not bring back exactly, and that are refused for it."""

from __future__ import annotations

import sys

from torch.nn import Module

USAGE = 64


def refuse_fsdp1(module: Module) -> None:
    """Called with each outermost module of several ranks, before its first forward.

    Raises:
        SystemExit: it holds FSDP1's flat parameters, which are sometimes whole and sometimes a
            shard: no state of them can be taken from outside.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    kind = getattr(fsdp, "FullyShardedDataParallel", None)
    if kind is not None and any(isinstance(part, kind) for part in module.modules()):
        print(
            "supervisor: error: FullyShardedDataParallel: FSDP1 cannot be resumed exactly: use "
            "FSDP2, `torch.distributed.fsdp.fully_shard`",
            file=sys.stderr,
        )
        raise SystemExit(USAGE)
