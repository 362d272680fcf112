"""Gradients between two steps: which parameters have one, and what the next backward adds to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from supervisor.errors import CheckpointError
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.plain_form import restore_problem
from supervisor.training_state.registry import Registry
from supervisor.training_state.tensors import local, outside_autograd, write_into

Gradients = dict[str, dict[int, Any]]
"""Holder of parameters → index of the parameter → its gradient; a sparse one by its parts."""
_INDICES, _VALUES, _COALESCED = "indices", "values", "is_coalesced"


def parameters_by_holder(registry: Registry) -> dict[str, list[torch.Tensor]]:
    """Returns optimizer → its parameters, and model → those of its own that no optimizer has.

    The latter keep their gradients when an optimizer clears its own: a backbone that is not frozen
    while a head is trained adds up what every backward gives it, and clipping counts it.
    """
    found = {name: optimizer_parameters(value) for name, value in registry.optimizers.items()}
    taken = {id(parameter) for parameters in found.values() for parameter in parameters}
    return found | {
        name: [p for p in nn.Module.parameters(model) if id(p) not in taken]
        for name, model in registry.models.items()
    }


def gradient_places(registry: Registry) -> dict[str, list[int]]:
    """Returns holder → indices of its parameters that have a gradient, whatever its values.

    A parameter without one is left alone by the next update if its backward gives it none; with
    zeros, momentum and weight decay move it.
    """
    return {
        name: [index for index, parameter in enumerate(parameters) if parameter.grad is not None]
        for name, parameters in parameters_by_holder(registry).items()
    }


def put_in_places(registry: Registry, saved: Mapping[str, list[int]]) -> None:
    """Takes gradients away where there were none, and gives zeros where there was one.

    Args:
        registry: of the live models and optimizers.
        saved: of `gradient_places`.
    """
    for name, parameters in parameters_by_holder(registry).items():
        if name not in saved:
            continue
        places = set(saved[name])
        for index, parameter in enumerate(parameters):
            if index not in places:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)


def earlier_gradients(registry: Registry) -> Iterator[torch.Tensor]:
    """Yields a gradient of each optimizer that has any: the first one."""
    for optimizer in registry.optimizers.values():
        for group in optimizer.param_groups:  # loops without a call: this is asked at every step
            for parameter in group["params"]:
                if (gradient := parameter.grad) is not None:
                    yield gradient
                    break
            else:
                continue
            break


def capture_gradients(registry: Registry, *, of_optimizers: bool) -> Gradients:
    """Returns the live gradients of parameters that no optimizer has, and where asked for, those
    of optimizers."""
    optimizers = registry.optimizers
    return {
        name: _gradients(parameters)
        for name, parameters in parameters_by_holder(registry).items()
        if of_optimizers or name not in optimizers
    }


def check_gradients(registry: Registry, saved: Gradients) -> None:
    """Raises CheckpointError if a gradient has another shape than its parameter."""
    for name, parameters in parameters_by_holder(registry).items():
        for index, gradient in saved.get(name, {}).items():
            shape = _shape(gradient, parameters[index]) if index < len(parameters) else None
            if shape is None or local(parameters[index]).shape != shape:
                told = None if shape is None else tuple(shape)
                raise CheckpointError(
                    f"{name}: the gradient of parameter {index} has shape {told} in the checkpoint"
                )


def restore_gradients(registry: Registry, saved: Gradients) -> None:
    """Restores every gradient of the holders in `saved`, in place where there is one; None if a
    parameter had none."""
    with outside_autograd():
        for name, parameters in parameters_by_holder(registry).items():
            if name not in saved:
                continue
            for index, parameter in enumerate(parameters):
                _restore(parameter, saved[name].get(index))


def _gradients(parameters: list[torch.Tensor]) -> dict[int, Any]:
    return {
        index: _parts(parameter.grad) if parameter.grad.is_sparse else local(parameter.grad)
        for index, parameter in enumerate(parameters)
        if parameter.grad is not None
    }


def _parts(gradient: torch.Tensor) -> dict[str, Any]:
    """An embedding's gradient, which lists some rows more than once until it is coalesced."""
    plain = gradient.detach()
    return {
        _INDICES: plain._indices(),
        _VALUES: plain._values(),
        _COALESCED: plain.is_coalesced(),
    }


def _shape(gradient: Any, parameter: torch.Tensor) -> torch.Size | None:
    """The shape that a saved gradient belongs to; None where its parts do not fit."""
    if isinstance(gradient, torch.Tensor):
        return gradient.shape
    rows = gradient[_INDICES].shape[0]
    fits = gradient[_VALUES].shape[1:] == parameter.shape[rows:]
    return parameter.shape if fits else None


def _restore(parameter: torch.Tensor, saved: Any) -> None:
    if saved is None:
        parameter.grad = None
    elif not isinstance(saved, torch.Tensor):
        indices, values = (saved[name].to(parameter.device) for name in (_INDICES, _VALUES))
        gradient = torch.sparse_coo_tensor(indices, values.clone(), parameter.shape)
        parameter.grad = gradient._coalesced_(saved[_COALESCED])
    elif parameter.grad is not None and _is_place_for(parameter.grad, saved):
        write_into(parameter.grad, saved)
    else:
        wanted = torch.empty_like(parameter, requires_grad=False)
        write_into(wanted, saved)
        parameter.grad = wanted


def _is_place_for(live: torch.Tensor, saved: torch.Tensor) -> bool:
    return not live.is_sparse and not restore_problem(local(live), saved)
