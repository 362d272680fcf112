"""Which model each parameter of an optimizer belongs to, so that a resume mixes up no states.

Names in the registry follow the order of first sight, which differs between processes if a script
iterates over a set of tensors or modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.registry import Registry
from supervisor.training_state.script_state.reach import Reach


def find_owners(registry: Registry, frames: Any) -> dict[str, Any]:
    """Returns the path of each model, the names of each optimizer's parameters, and the optimizer
    of each scheduler.

    A parameter of a model has the model's name and its own, any other the path by which the
    script's variables reach it; "" is not known. Called at a boundary.

    Args:
        registry: of the training.
        frames: see `Reach`.
    """
    models, optimizers = registry.models, registry.optimizers
    own = {name: list(nn.Module.named_parameters(model)) for name, model in models.items()}
    called = {id(p): f"{model}.{name}" for model, found in own.items() for name, p in found}
    loose = {id(p) for o in optimizers.values() for p in optimizer_parameters(o)} - called.keys()
    wanted = set(loose)
    if len(models) > 1:  # one has no other to be taken for
        wanted |= called.keys()
    paths: dict[int, str] = {}
    if wanted:
        paths = {id(p.value): p.path for p in Reach(frames) if id(p.value) in wanted}
    return {
        "models": {
            name: next((paths[id(p)] for _, p in found if id(p) in paths), "")
            for name, found in own.items()
        },
        "optimizers": {
            name: [called.get(id(p)) or paths.get(id(p), "") for p in optimizer_parameters(o)]
            for name, o in optimizers.items()
        },
        "schedulers": _schedulers(registry),
    }


def _schedulers(registry: Registry) -> dict[str, str]:
    """The optimizer of each, with a number where it has several."""
    names = {id(optimizer): name for name, optimizer in registry.optimizers.items()}
    count: Counter[str] = Counter()
    found = {}
    for name, scheduler in registry.schedulers.items():
        optimizer = names.get(id(getattr(scheduler, "optimizer", None)), "")
        count[optimizer] += 1
        found[name] = f"{optimizer} {count[optimizer]}"
    return found


def put_in_order(registry: Registry, saved: Mapping[str, Any], frames: Any) -> list[str]:
    """Gives live models, optimizers and their parameters the names and order of a checkpoint.

    Called before its state is put back.

    Args:
        saved: of `find_owners`, when the checkpoint was made.
        registry: whose names are changed.
        frames: see `Reach`.

    Returns:
        What may have been mixed up, in words; empty if everything is known to be in its place.
    """
    live = find_owners(registry, frames)["models"]
    if live != saved["models"]:
        registry.rename(_renamed(live, saved["models"]))
    live = find_owners(registry, frames)["optimizers"]
    if live != saved["optimizers"]:
        keys = [
            {name: "\n".join(sorted(owners)) for name, owners in each.items()}
            for each in (live, saved["optimizers"])
        ]
        registry.rename(_renamed(*keys))
        _sort_parameters(registry, saved["optimizers"], frames)
    live = _schedulers(registry)
    if live != saved["schedulers"]:
        registry.rename(_renamed(live, saved["schedulers"]))
    return _problems(saved, find_owners(registry, frames), registry)


def _renamed(live: Mapping[str, str], saved: Mapping[str, str]) -> dict[str, str]:
    """Returns live name → saved name; empty where it is not clear which is which."""
    by_place = {place: name for name, place in saved.items()}
    clear = len(by_place) == len(saved) and set(live.values()) == by_place.keys()
    if not clear or len(live) != len(saved) or "" in by_place:
        return {}
    return {name: by_place[place] for name, place in live.items()}


def _sort_parameters(registry: Registry, saved: Mapping[str, list[str]], frames: Any) -> None:
    live = find_owners(registry, frames)["optimizers"]
    for name, optimizer in registry.optimizers.items():
        begin, then = 0, saved.get(name, [])
        for group in optimizer.param_groups:
            end = begin + len(group["params"])
            now, wanted = live[name][begin:end], then[begin:end]
            if sorted(now) == sorted(wanted) and len(set(now)) == len(now):
                of = dict(zip(now, group["params"], strict=True))
                group["params"] = [of[owner] for owner in wanted]
            begin = end


def _problems(saved: Mapping[str, Any], live: Mapping[str, Any], registry: Registry) -> list[str]:
    found = []
    for kind in ("models", "optimizers", "schedulers"):
        for name, then in saved[kind].items():
            if name in live[kind] and live[kind][name] != then:
                found.append(f"{name} is not the one that it was in the recorded run")
    shapes: Counter[tuple[Any, ...]] = Counter()
    for name, optimizer in registry.optimizers.items():
        for owner, tensor in zip(
            live["optimizers"][name], optimizer_parameters(optimizer), strict=True
        ):
            if not owner:
                shapes[_kind(tensor)] += 1
    if max(shapes.values(), default=0) > 1:
        found.append("which parameter is which cannot be told: no variable leads to some of them")
    return found


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (*tensor.shape, tensor.dtype)
