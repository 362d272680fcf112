"""The states of all ranks, joined to one that no number of ranks is in any more.

The names of parameters without those of the wrappers around them. Reads the states of ranks out of
a checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.ranks import FIRST_RANK, RankPlace
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.checkpoints.parts import part_of, ranks_of
from supervisor.training_state.replicas import with_replicated
from supervisor.training_state.state import digest, read_state
from supervisor.training_state.tensors import first_difference

_WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module"})
"""What DistributedDataParallel, torch.compile and activation checkpointing put into names."""


def canonical(name: str) -> str:
    """Returns the name that a tensor has in the model itself: ``module.0.weight`` is ``0.weight``.

    A script wraps its model for several ranks, and not for one.
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def unique_names(optimizer: str, owners: Sequence[str]) -> list[str]:
    """Returns a name for each parameter of an optimizer, the same for any number of ranks.

    Args:
        optimizer: its name in the registry.
        owners: of its parameters, as `find_owners` tells them.
    """
    names = [canonical(owner) for owner in owners]
    if "" in names or len(set(names)) != len(names):
        return [f"{optimizer}#{index}" for index in range(len(names))]
    return names


State = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredOptimizer:
    """An optimizer's state by the names of its parameters.

    Attributes:
        state: parameter → entries, whole tensors.
        loose: parameter → its value, of those in no model.
        dtypes: parameter → its type.
        groups: hyperparameters, with the names under ``params``.
        shared, attributes: see `capture_optimizer`.
    """

    state: Mapping[str, Mapping[str, Any]]
    loose: Mapping[str, torch.Tensor]
    dtypes: Mapping[str, str]
    groups: Sequence[Mapping[str, Any]]
    shared: Mapping[str, Any]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredState:
    """Whole weights and optimizers of a training of any number of ranks.

    Attributes:
        models: model → name → whole tensor; names as in the first rank's state.
        optimizers: by their names in the registry.
        held: path → what the script's variables hold alike on all ranks, whole.
        first: the first rank's state: what is alike on all ranks, or each rank's own.
        random: states of the generators, by rank.
    """

    models: Mapping[str, Mapping[str, torch.Tensor]]
    optimizers: Mapping[str, GatheredOptimizer]
    held: Mapping[str, Any]
    first: State
    random: Sequence[Any]


def gather(states: Sequence[State]) -> GatheredState:
    """Joins the states of all ranks of one checkpoint.

    Parts of one tensor are put together by their layouts. What has none must be the same on all
    ranks, or be held by some of them alone (ZeroRedundancyOptimizer); of buffers, which each rank
    may have its own of, the first rank's are taken.

    Args:
        states: of each rank, in their order, as `read_rank_state` returns them.

    Raises:
        CheckpointError: ranks hold different values, and nothing tells how they belong together.
    """
    first = states[0]
    return GatheredState(
        models={name: _model(name, states) for name in first["models"]},
        optimizers={name: _optimizer(name, states) for name in first["optimizers"]},
        held=_held(states),
        first=first,
        random=[state.get("rng") for state in states],
    )


def _held(states: Sequence[State]) -> dict[str, Any]:
    found = {}
    for path in states[0].get("held", {}):
        values = [state.get("held", {}).get(path) for state in states]
        with contextlib.suppress(CheckpointError):  # each rank has one of its own
            if None not in values:
                found[path] = _joined(f"held.{path}", values, states)
    return found


def _model(name: str, states: Sequence[State]) -> dict[str, torch.Tensor]:
    first = states[0]["models"][name]
    buffers = set(states[0]["buffers"][name])
    for rank, state in enumerate(states):
        own = state["models"].get(name, {})
        if own.keys() - set(state["buffers"].get(name, ())) != first.keys() - buffers:
            raise CheckpointError(
                f"rank {rank}: {name} has other parameters than on rank 0: each rank trains a part "
                "of its own, so only as many ranks as before can go on"
            )
    found = {}
    for own_name in first:
        path = f"models.{name}.{own_name}"
        values = [state["models"][name].get(own_name) for state in states]
        found[own_name] = _joined(path, values, states, is_own=own_name in buffers)
    return found


def _optimizer(name: str, states: Sequence[State]) -> GatheredOptimizer:
    entries: dict[str, dict[str, list[Any]]] = {}
    loose: dict[str, list[Any]] = {}
    dtypes: dict[str, str] = {}
    paths: dict[str, str] = {}
    for rank, state in enumerate(states):
        optimizer = state["optimizers"].get(name)
        if optimizer is None:
            raise CheckpointError(f"rank {rank}: has no {name}: as many ranks as before can go on")
        owners = _owners(name, state)
        for index, owner in enumerate(owners):
            dtypes.setdefault(owner, optimizer["dtypes"][index])
            where = f"optimizers.{name}.state.{index}"
            for key, value in optimizer["state"].get(index, {}).items():
                known = entries.setdefault(owner, {}).setdefault(key, [None] * len(states))
                known[rank] = value
                paths[f"{owner}.{key}.{rank}"] = f"{where}.{key}"
            if index in optimizer["parameters"]:
                known = loose.setdefault(owner, [None] * len(states))
                known[rank] = optimizer["parameters"][index]
                paths[f"{owner}..{rank}"] = f"optimizers.{name}.parameters.{index}"
    first = states[0]["optimizers"][name]
    names = _owners(name, states[0])

    def whole(owner: str, key: str, values: list[Any]) -> Any:
        return _joined(
            [paths.get(f"{owner}.{key}.{rank}", "") for rank in range(len(states))], values, states
        )

    return GatheredOptimizer(
        state={
            owner: {key: whole(owner, key, values) for key, values in found.items()}
            for owner, found in entries.items()
        },
        loose={owner: whole(owner, "", values) for owner, values in loose.items()},
        dtypes=dtypes,
        groups=[
            {**group, "params": [names[index] for index in group["params"]]}
            for group in first["param_groups"]
        ],
        shared=first["shared"],
        attributes=first["attributes"],
    )


def _owners(name: str, state: State) -> list[str]:
    count = len(state["optimizers"][name]["dtypes"])
    found = list(state.get("owners", {}).get("optimizers", {}).get(name, ()))
    return unique_names(name, found if len(found) == count else [""] * count)


def _joined(
    path: str | Sequence[str],
    values: Sequence[Any],
    states: Sequence[State],
    *,
    is_own: bool = False,
) -> Any:
    """Makes one value of those that ranks hold; None is held by none of them.

    Args:
        path: of the value in each rank's state.
        is_own: each rank may have another one: the first rank's is taken.
    """
    paths = [path] * len(states) if isinstance(path, str) else path
    held = [
        (state.get("layouts", {}).get(place), value, place)
        for state, value, place in zip(states, values, paths, strict=True)
        if value is not None
    ]
    layout, first, place = held[0]
    if layout is not None:
        pieces = [(tuple(each["offset"]), value) for each, value, _ in held if each is not None]
        return assemble(place, layout["shape"], pieces)
    for _, other, _ in held[1:]:
        if is_own or other is first:
            continue
        if first_difference({"value": first}, {"value": other}) is not None:
            raise CheckpointError(
                f"{place}: ranks hold different values, and nothing tells how they belong "
                "together: only as many ranks as before can go on"
            )
    return first


def assemble(
    path: str, shape: Sequence[int], pieces: Sequence[tuple[tuple[int, ...], torch.Tensor]]
) -> torch.Tensor:
    """Puts a tensor together from its pieces.

    Args:
        path: its name in messages.
        shape: of the whole.
        pieces: offset and values of each; several ranks may hold the same one.

    Raises:
        CheckpointError: they overlap, leave something out, or copies of one differ.
    """
    whole = torch.empty(tuple(shape), dtype=pieces[0][1].dtype)
    times = torch.zeros(whole.shape, dtype=torch.uint8)
    placed: dict[tuple[Any, ...], torch.Tensor] = {}
    for offset, piece in pieces:
        if not piece.numel():
            continue
        place = (offset, tuple(piece.shape))
        if place in placed:
            if first_difference({"value": placed[place]}, {"value": piece}) is not None:
                raise CheckpointError(f"{path}: two ranks hold different copies of one part")
            continue
        placed[place] = piece
        region = tuple(slice(o, o + n) for o, n in zip(offset, piece.shape, strict=True))
        whole[region].copy_(piece)
        times[region] += 1
    if not bool((times == 1).all()):
        raise CheckpointError(f"{path}: the parts of all ranks do not make up the whole tensor")
    return whole


def read_rank_state(checkpoint: Checkpoint, place: RankPlace) -> dict[str, Any]:
    """Returns the state of the rank at `place`, with what it shares with the first rank.

    Raises:
        CheckpointError: it cannot be read, or another number of ranks has saved it.
    """
    part = part_of(checkpoint, place.rank, place.world_size)
    state = read_state(part.path)
    if not place.is_first_rank:
        first = read_state(part_of(checkpoint, FIRST_RANK, place.world_size).path)
        state = with_replicated(state, first)
    return state


def read_all_ranks(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Returns the states of all ranks that saved a checkpoint, in their order, each checked.

    Raises:
        CheckpointError: one of them cannot be read.
        CheckpointDamaged: one is not what was copied.
    """
    count = ranks_of(checkpoint)
    states = []
    for rank in range(count):
        place = RankPlace(rank=rank, world_size=count)
        states.append(read_rank_state(checkpoint, place))
        check_digest(part_of(checkpoint, rank, count), states[-1])
    return states


def check_digest(part: Checkpoint, state: dict[str, Any]) -> None:
    """Checks that what was read is what lay in memory when the checkpoint was made.

    Raises:
        CheckpointDamaged: it changed before it was written, as in a faulty memory.
    """
    stated = part.meta.get("digest")
    if stated is not None and digest(state) != stated:
        raise CheckpointDamaged(
            f"{part.path}: its state is not the one that was copied: use an older checkpoint, and "
            "check this machine's memory"
        )
