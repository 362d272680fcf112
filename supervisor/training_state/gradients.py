"""Gradients between two steps: which parameters have one, and what the next backward adds to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from supervisor.errors import CheckpointError
from supervisor.training_state.misfits import misfit
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.registry import Registry
from supervisor.training_state.tensors import local, outside_autograd, write_into


def gradient_places(registry: Registry) -> dict[str, list[int]]:
    """Returns optimizer → indices of its parameters that have a gradient, whatever its values.

    A parameter without one is left alone by the next update if its backward gives it none; with
    zeros, momentum and weight decay move it.
    """
    return {name: _present(optimizer) for name, optimizer in registry.optimizers.items()}


def put_in_places(registry: Registry, saved: Mapping[str, list[int]]) -> None:
    """Takes gradients away where there were none, and gives zeros where there was one.

    Args:
        registry: of the live optimizers.
        saved: of `gradient_places`.
    """
    for name, optimizer in registry.optimizers.items():
        if name not in saved:
            continue
        places = set(saved[name])
        for index, parameter in enumerate(optimizer_parameters(optimizer)):
            if index not in places:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)


def earlier_gradients(registry: Registry) -> Iterator[torch.Tensor]:
    """Yields a gradient of each optimizer that has any: the first one."""
    for optimizer in registry.optimizers.values():
        gradients = (parameter.grad for parameter in optimizer_parameters(optimizer))
        first = next((gradient for gradient in gradients if gradient is not None), None)
        if first is not None:
            yield first


def _present(optimizer: torch.optim.Optimizer) -> list[int]:
    parameters = enumerate(optimizer_parameters(optimizer))
    return [index for index, parameter in parameters if parameter.grad is not None]


def capture_gradients(optimizer: torch.optim.Optimizer) -> dict[int, torch.Tensor]:
    """Returns parameter index → live gradient; sparse ones are left out."""
    parameters = enumerate(optimizer_parameters(optimizer))
    return {i: local(p.grad) for i, p in parameters if p.grad is not None and not p.grad.is_sparse}


def restore_gradients(optimizer: torch.optim.Optimizer, saved: Mapping[int, torch.Tensor]) -> None:
    """Restores every parameter's gradient, in place if it has one; None if it had none."""
    with outside_autograd():
        for index, parameter in enumerate(optimizer_parameters(optimizer)):
            if index not in saved:
                parameter.grad = None
            elif parameter.grad is not None and not misfit(local(parameter.grad), saved[index]):
                write_into(parameter.grad, saved[index])
            else:
                wanted = torch.empty_like(parameter, requires_grad=False)
                write_into(wanted, saved[index])
                parameter.grad = wanted


def check_gradients(where: str, optimizer: torch.optim.Optimizer, saved: Mapping[int, Any]) -> None:
    """Raises CheckpointError if a gradient has another shape than its parameter."""
    for index, parameter in enumerate(optimizer_parameters(optimizer)):
        if index in saved and local(parameter).shape != saved[index].shape:
            raise CheckpointError(
                f"{where}: the gradient of parameter {index} has shape "
                f"{tuple(saved[index].shape)} in the checkpoint"
            )
