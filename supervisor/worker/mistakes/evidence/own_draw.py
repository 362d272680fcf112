"""Whether a module of torch still holds what its constructor drew.

Each constructor writes a parameter once: one in-place operation, so its version is 1. Loading,
copying, an initialisation of the script's own, and updates each raise it; a copied module has 0.
Writes through ``.data`` do not, so the numbers must also follow the constructor's own law.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

_DRAWN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, nn.Embedding)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
PLAIN = (torch.Tensor, nn.Parameter)
"""Types that are looked at: a comparison of sharded tensors may wait for other ranks."""
FEW = 32
"""Fewer elements tell nothing of a law."""
MANY = 65_536
"""More of one weight are not looked at: no copy of a large one is made."""


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Those of the module itself; asked of torch, as the script may have methods of its own."""
    return [each for each in module._parameters.values() if each is not None]


def held_by(*optimizers: Optimizer) -> list[Any]:
    """All parameters of optimizers."""
    return [each for own in optimizers for group in own.param_groups for each in group["params"]]


def is_own_draw(module: nn.Module) -> bool:
    """Whether all parameters of `module` itself are its constructor's; False where unknown."""
    if type(module).__module__.partition(".")[0] != "torch":
        return False
    own = own_parameters(module)
    if not own or any(each._version != 1 or type(each) not in PLAIN for each in own):
        return False
    if isinstance(module, _NORMS):
        return bool((module.weight == 1).all()) and not (
            module.bias is not None and module.bias.any()
        )
    if not isinstance(module, _DRAWN):
        return False
    weight = module.weight_hh_l0 if isinstance(module, nn.RNNBase) else module.weight
    return isinstance(weight, torch.Tensor) and _follows_law(module, weight.detach())


def is_drawn_at_random(module: nn.Module) -> bool:
    return isinstance(module, _DRAWN)


def _follows_law(module: nn.Module, weight: torch.Tensor) -> bool:
    if weight.numel() < FEW:
        return False
    fan_in = weight[0].numel()
    weight = weight.flatten()[:MANY].float()
    spread = float(weight.std())
    tolerance = 0.05 + 2.0 / math.sqrt(weight.numel())  # about three standard errors
    if isinstance(module, nn.Embedding):
        return abs(spread - 1.0) < tolerance
    if isinstance(module, nn.RNNBase):
        bound = 1.0 / math.sqrt(module.hidden_size)
    else:
        bound = 1.0 / math.sqrt(fan_in)
    is_within = float(weight.abs().max()) <= bound * 1.005  # as BF16 rounds it
    return is_within and abs(spread * math.sqrt(3) / bound - 1.0) < tolerance
