"""A gathered state in the form that one rank of another number of ranks puts back.

Where the part of a tensor that a rank holds lies in the whole one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from supervisor.errors import CheckpointError
from supervisor.training_state.model_state import named_parts, named_tensors
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.owners import find_owners
from supervisor.training_state.plain_form import restore_problem, to_plain
from supervisor.training_state.registry import Registry
from supervisor.training_state.script_state.reach import Reach
from supervisor.training_state.sharding.gathered import (
    GatheredOptimizer,
    GatheredState,
    canonical,
    unique_names,
)
from supervisor.training_state.tensors import first_difference, local, outside_autograd, write_into


def layouts(registry: Registry, held: Mapping[str, Any]) -> dict[str, dict[str, list[int]]]:
    """Returns path in the state → ``shape`` of the whole tensor and ``offset`` of this rank's part.

    Of each DTensor of models and optimizers, as FSDP2 and tensor parallelism make them. A tensor
    that is not named is held whole. Called at a boundary, where a checkpoint is made.

    Args:
        held: what else the checkpoint has of the script's variables.
    """
    found = {}
    others = ((f"held.{path}", value) for path, value in held.items())
    for path, tensor in itertools.chain(_held_tensors(registry), others):
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


def _held_tensors(registry: Registry) -> Iterator[tuple[str, Any]]:
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


_BY_PATH = ("modes", "attributes", "extra")
_OF_ITS_RANK = ("grads", "gradient_places", "owners", "rng")
_NAMED = 3
_REDUCERS = (nn.parallel.DistributedDataParallel,)
"""Whose own attributes depend on how many ranks there are."""


def repartition(
    gathered: GatheredState,
    registry: Registry,
    frames: Any,
    *,
    rank: int,
    keeps_schedules: bool,
) -> dict[str, Any]:
    """Returns the state as `TrainingState.restore` takes it, for the live objects of this rank.

    Called where they are to be overwritten, after an update was made: an optimizer's state tells
    what it keeps.

    Args:
        frames: of the script, see `find_owners`.
        rank: of this process.
        keeps_schedules: learning rates stay as the script's own loop has set them.

    Raises:
        CheckpointError: an optimizer's state is not in the checkpoint.
    """
    first = gathered.first
    models = registry.models
    live = {name: _tensors(model) for name, model in models.items()}
    state = {key: value for key, value in first.items() if key not in _OF_ITS_RANK}
    state["models"] = {
        name: _for_model(live.get(name, {}), tensors) for name, tensors in gathered.models.items()
    }
    for part in _BY_PATH:
        state[part] = {
            name: _for_paths(models.get(name), found, keeps=part == "attributes")
            for name, found in first.get(part, {}).items()
        }
    with outside_autograd():
        state["optimizers"] = _for_optimizers(gathered, registry, frames, keeps_schedules)
    if keeps_schedules:
        state["schedulers"] = {
            name: saved
            for name, saved in first["schedulers"].items()
            if _follows_losses(registry.schedulers.get(name))
        }
    random = _random(gathered.random, rank)
    return {**state, "rng": random or {}}


def piece_of(whole: torch.Tensor, live: Any) -> torch.Tensor:
    """Returns the part of `whole` that this rank holds of the tensor `live`."""
    placed = placement_of(live)
    if placed is None or list(whole.shape) != placed[0]:
        return whole
    part = whole
    for dimension, (offset, size) in enumerate(zip(placed[1], live.to_local().shape, strict=True)):
        part = part.narrow(dimension, min(offset, whole.shape[dimension]), size)
    return part.contiguous()


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    parameters, buffers = named_tensors(model)
    return parameters | buffers


def _for_model(
    live: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Each saved tensor under the name that the live model has for it."""
    names = _renamed(saved, live)
    return {
        names.get(name, name): piece_of(tensor, live.get(names.get(name, name)))
        for name, tensor in saved.items()
    }


def _renamed(saved: Iterable[str], live: Iterable[str]) -> dict[str, str]:
    """Saved name → live one, where both are the same without wrappers."""
    by_canonical: dict[str, str] = {}
    for name in live:
        by_canonical[canonical(name)] = name  # what is wrapped comes behind its wrapper
    live = set(live)
    return {
        name: name if name in live else by_canonical.get(canonical(name), name) for name in saved
    }


def _for_paths(model: nn.Module | None, saved: Mapping[str, Any], *, keeps: bool) -> dict[str, Any]:
    """What was saved by submodule, or by ``submodule:attribute``, under the live names.

    Args:
        keeps: what a wrapper for several ranks says of itself stays as it is.
    """
    if model is None:
        return dict(saved)
    parts = dict(model.named_modules(remove_duplicate=False))
    by_canonical = {canonical(path.partition(":")[0]): path.partition(":")[0] for path in saved}
    found = {}
    for path, part in parts.items():
        if keeps and isinstance(part, _REDUCERS):
            continue
        source = by_canonical.get(canonical(path))
        if source is None:
            continue
        for name, value in saved.items():
            before, colon, attribute = name.partition(":")
            if before == source:
                found[f"{path}{colon}{attribute}"] = value
    return found


def _for_optimizers(
    gathered: GatheredState, registry: Registry, frames: Any, keeps_schedules: bool
) -> dict[str, Any]:
    scheduled = {
        id(getattr(scheduler, "optimizer", None))
        for scheduler in registry.schedulers.values()
        if keeps_schedules and not _follows_losses(scheduler)
    }
    owners = find_owners(registry, frames)["optimizers"]
    names = {name: unique_names(name, found) for name, found in owners.items()}
    live = {parameter for found in names.values() for parameter in found}
    for saved in gathered.optimizers.values():
        for parameter in saved.state:
            if parameter not in live:
                raise CheckpointError(
                    f"{parameter}: its optimizer's state is only in the checkpoint: as many ranks "
                    "as before can go on"
                )
    found = {}
    for name, optimizer in registry.optimizers.items():
        sources = [one for other, one in gathered.optimizers.items() if other != name]
        if _is_held_by_another(optimizer, registry.optimizers.values()):
            sources = []
        if name in gathered.optimizers:
            sources.insert(0, gathered.optimizers[name])
        groups = sources[0].groups if sources and id(optimizer) not in scheduled else None
        found[name] = _for_optimizer(optimizer, names[name], sources, groups)
    return found


def _for_optimizer(
    optimizer: Optimizer,
    names: list[str],
    sources: list[GatheredOptimizer],
    groups: Any,
) -> dict[str, Any]:
    """The state of one live optimizer.

    Args:
        names: of its parameters.
        sources: where their state may be, the likeliest first.
        groups: the saved ones; None for those that it has.
    """
    parameters = optimizer_parameters(optimizer)
    state: dict[int, dict[str, Any]] = {}
    loose: dict[int, torch.Tensor] = {}
    dtypes = []
    for index, (name, parameter) in enumerate(zip(names, parameters, strict=True)):
        entries = next((s.state[name] for s in sources if name in s.state), None)
        if entries is not None:
            live = optimizer.state.get(parameter, {})
            state[index] = {
                key: piece_of(value, _like(live.get(key), value, parameter))
                if isinstance(value, torch.Tensor)
                else value
                for key, value in entries.items()
            }
        value = next((s.loose[name] for s in sources if name in s.loose), None)
        if value is not None:
            loose[index] = piece_of(value, parameter)
        dtypes.append(
            next((s.dtypes[name] for s in sources if name in s.dtypes), str(parameter.dtype))
        )
    return {
        "state": state,
        "shared": sources[0].shared if sources else {},
        "param_groups": _groups(optimizer, groups),
        "parameters": loose,
        "dtypes": dtypes,
        "attributes": sources[0].attributes if sources else {},
    }


def _like(live: Any, saved: torch.Tensor, parameter: torch.Tensor) -> Any:
    """The live tensor whose place tells what of `saved` this rank holds."""
    return live if isinstance(live, torch.Tensor) and live.shape == saved.shape else parameter


def _groups(optimizer: Optimizer, saved: Any) -> list[dict[str, Any]]:
    """The hyperparameters, with the live places of parameters."""
    use = saved is not None and len(saved) == len(optimizer.param_groups)
    found, begin = [], 0
    for number, live in enumerate(optimizer.param_groups):
        end = begin + len(live["params"])
        given = (
            saved[number]
            if use
            else to_plain(
                {key: value for key, value in live.items() if key != "params"}, "group", []
            )
        )
        found.append({**given, "params": list(range(begin, end))})
        begin = end
    return found


def _is_held_by_another(optimizer: Optimizer, all_of_them: Collection[Optimizer]) -> bool:
    """Whether an inner optimizer keeps the state of this one's parameters."""
    if optimizer.state:
        return False
    own = {id(parameter) for parameter in optimizer_parameters(optimizer)}
    return any(
        any(id(parameter) in own for parameter in other.state)
        for other in all_of_them
        if other is not optimizer
    )


def _follows_losses(scheduler: Any) -> bool:
    """Whether its state is more than how often it was stepped."""
    return isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


def _random(saved: Any, rank: int) -> Any:
    """The generators' state for a rank; None for that which the script has given it.

    One process tells nothing of how several ranks differ; a new rank has what all had, if it was
    the same.
    """
    if len(saved) == 1:
        return None
    if rank < len(saved):
        return saved[rank]
    first = {"random": saved[0]}
    alike = all(first_difference(first, {"random": other}) is None for other in saved[1:])
    return saved[0] if alike else None


def restricted(live: Any, wanted: Any) -> Any:
    """Returns of nested dicts only what `wanted` has, too."""
    if isinstance(live, Mapping) and isinstance(wanted, Mapping):
        return {key: restricted(live[key], wanted[key]) for key in wanted if key in live}
    return live


def put_back_held(gathered: GatheredState, frames: Any) -> list[str]:
    """Writes what the script's variables held into those of the same path and shape.

    Returns:
        The paths where that cannot be, in words.
    """
    waiting = dict(gathered.held)
    with outside_autograd():
        for place in list(Reach(frames)):
            value, live = waiting.get(place.path), place.value
            if isinstance(value, torch.Tensor) and isinstance(live, torch.Tensor):
                part = piece_of(value, live)
                if local(live).shape == part.shape and not restore_problem(local(live), part):
                    write_into(live, part)
                    del waiting[place.path]
    return [f"{path}: not put back" for path in sorted(waiting)[:_NAMED]]
