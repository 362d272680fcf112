"""Where the part of a tensor that a rank holds lies in the whole one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from supervisor.training_state.model_state import named_parts, named_tensors
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.registry import Registry


def layouts(registry: Registry, held: Mapping[str, Any]) -> dict[str, dict[str, list[int]]]:
    """Returns path in the state → ``shape`` of the whole tensor and ``offset`` of this rank's part.

    Of each DTensor of models and optimizers, as FSDP2 and tensor parallelism make them. A tensor
    that is not named is held whole. Called at a boundary, where a checkpoint is made.

    Args:
        held: what else the checkpoint has of the script's variables.
    """
    found = {}
    others = ((f"held.{path}", value) for path, value in held.items())
    for path, tensor in itertools.chain(_tensors(registry), others):
        placed = placement_of(tensor)
        if placed is not None:
            shape, offset = placed
            found[path] = {"shape": shape, "offset": offset}
    return found


def placement_of(tensor: Any) -> tuple[list[int], list[int]] | None:
    """Returns the shape of the whole tensor and the offset of this rank's part; None for a tensor
    that this rank holds whole."""
    placements = getattr(tensor, "placements", None)
    if placements is None or not isinstance(tensor, torch.Tensor):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh: Any = getattr(tensor, "device_mesh")  # noqa: B009 (not every tensor has one)
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    return list(tensor.shape), list(offset)


def transient_buffers(registry: Registry) -> dict[str, list[str]]:
    """Returns for each model the names of the buffers that its ``state_dict`` does not have."""
    return {
        model: [
            f"{path}.{name}" if path else name
            for path, part in named_parts(module)
            for name in sorted(part._non_persistent_buffers_set.intersection(part._buffers.keys()))
        ]
        for model, module in registry.models.items()
    }


def _tensors(registry: Registry) -> Iterator[tuple[str, Any]]:
    in_models: set[int] = set()
    for name, model in registry.models.items():
        in_models |= {id(p) for p in nn.Module.parameters(model)}
        for found in named_tensors(model):
            for own, tensor in found.items():
                yield f"models.{name}.{own}", tensor
    for name, optimizer in registry.optimizers.items():
        for index, parameter in enumerate(optimizer_parameters(optimizer)):
            for key, value in optimizer.state.get(parameter, {}).items():
                yield f"optimizers.{name}.state.{index}.{key}", value
            if id(parameter) not in in_models:
                yield f"optimizers.{name}.parameters.{index}", parameter
