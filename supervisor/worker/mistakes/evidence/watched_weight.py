"""The one weight whose gradient is followed through the first steps."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

LARGE = 8_192
"""Elements of a gradient that is too large to be copied at each of these steps."""


def watched_weight(optimizer: Optimizer) -> torch.Tensor | None:
    """The largest one that is not too large, and has a plain gradient; None without one."""
    found = [
        each
        for group in optimizer.param_groups
        for each in group["params"]
        if each.numel() <= LARGE
        and type(each.grad) is torch.Tensor
        and each.grad.layout is torch.strided
    ]
    return max(found, key=torch.Tensor.numel, default=None)
