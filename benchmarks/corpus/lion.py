"""An optimizer whose updates are signs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Lion(torch.optim.Optimizer):
    """Evolved sign momentum (Chen et al., 2023, arXiv 2302.06675), its published defaults."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            one, two = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(torch.lerp(parameter.grad, mean, one).sign(), alpha=group["lr"])
                mean.lerp_(parameter.grad, 1 - two)
