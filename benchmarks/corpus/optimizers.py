"""The optimizers of the corpus by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.corpus.lion import Lion

OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": lambda parameters, lr: torch.optim.Adam(parameters, lr=lr),
    "adamw": lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95)),
    "lion": Lion,
}


def adam_rms(optimizer: torch.optim.Optimizer) -> float:
    """RMS of gradient over second moment of the worst tensor (arXiv 2304.13013); NaN if not Adam.

    Asked between backward and update; the second moment is the one that the update will use.
    """
    worst = float("nan")
    for group in optimizer.param_groups:
        if "eps" not in group:
            return worst
        beta = group["betas"][1]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if parameter.grad is None or "exp_avg_sq" not in state:
                continue
            square = parameter.grad.square()
            steps = float(state["step"]) + 1
            moment = state["exp_avg_sq"].lerp(square, 1 - beta) / (1 - beta**steps)
            ratio = float((square / moment.clamp_min(group["eps"] ** 2)).mean().sqrt())
            worst = ratio if not worst >= ratio else worst
    return worst
