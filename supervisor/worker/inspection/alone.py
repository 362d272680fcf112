"""What one of several ranks tries out by itself: nothing of it may reach the others."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.worker.ground.collective_names import COLLECTIVES


def without_others() -> contextlib.AbstractContextManager[Any]:
    """Within it a collective raises: the others, who try out something else, would not come."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return contextlib.nullcontext()
    return _NoCollectives()  # type: ignore[no-untyped-call]


class _NoCollectives(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch._dynamo is imported, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in COLLECTIVES:
            raise RuntimeError(f"{func} needs the other ranks")
        return func(*args, **(kwargs or {}))


def is_sharded(model: nn.Module) -> bool:
    """Whether a forward needs the other ranks for its weights (FSDP2, tensor parallelism)."""
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and any(isinstance(p, tensor.DTensor) for p in model.parameters())


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model whose forward needs no other rank, where it is wrapped in DDP."""
    return model.module if isinstance(model, DistributedDataParallel) else model
