"""Keeps one update from the weights."""

from __future__ import annotations

from collections.abc import Callable

import torch


def hide_gradients(
    optimizer: torch.optim.Optimizer,
    are_zero: Callable[[torch.Tensor], bool] = lambda gradient: False,
) -> Callable[[], None]:
    """Takes the gradients away before ``step``; returns what gives them back, zeroed, after it.

    With ``grad`` None every optimizer of torch leaves the parameter, its state and its weight
    decay alone. Multiplying by zero would not do: 0 x NaN is NaN. The same tensors come back,
    zeroed, for code that reads ``p.grad`` after the step. Under a closure it is called when the
    closure has made them, and again for each further evaluation.

    Args:
        are_zero: of which gradients it is known; they are given back as they are.
    """
    hidden = [
        (parameter, parameter.grad)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    for parameter, _ in hidden:
        parameter.grad = None

    def give_back() -> None:
        with torch.no_grad():
            for parameter, gradient in hidden:
                if not are_zero(gradient):
                    gradient.zero_()
                parameter.grad = gradient

    return give_back
