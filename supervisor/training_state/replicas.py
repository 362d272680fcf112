"""What several ranks hold alike: written once, and told where one of them differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from supervisor.errors import CheckpointDamaged
from supervisor.training_state.tensors import bytes_of, local, outside_autograd, walk_tensors

MOST = 8
"""Tensors that one flipped bit makes differ, at most: a parameter and its moments, twice. Ranks
that go their own ways on purpose (local updates, averaged now and then) differ in nearly all."""


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor of which not all ranks hold the same.

    Attributes:
        path: in the state.
        odd: the ranks that hold something else than most; empty if there is no majority.
    """

    path: str
    odd: tuple[int, ...]


def parameters_alike(models: Mapping[str, nn.Module]) -> frozenset[str]:
    """Returns the paths of the parameters that DistributedDataParallel keeps alike."""
    found: set[str] = set()
    for model, root in models.items():
        for place, part in root.named_modules():
            if not isinstance(part, DistributedDataParallel):
                continue
            ignored = set(getattr(part, "parameters_to_ignore", ()))
            prefix = ".".join(filter(None, ("models", model, place, "module")))
            names = (name for name, _ in part.module.named_parameters())
            found.update(f"{prefix}.{name}" for name in names if name not in ignored)
    return frozenset(found)


def shared_paths(first: Mapping[str, str], own: Mapping[str, str]) -> frozenset[str]:
    """Returns what this rank holds as the first one does; both are `tensor_digests`."""
    return frozenset(path for path, digest in own.items() if first.get(path) == digest)


def diverged(
    shared: Collection[str],
    first: Mapping[str, str],
    own: Mapping[str, str],
    alike: Collection[str],
) -> dict[str, str]:
    """Returns path → this rank's digest of what was alike at the last checkpoint and is not now.

    Nothing, unless they are few of many, a parameter of `alike` among them: only there nobody else
    can have made them differ.

    Args:
        shared: `shared_paths` of the last checkpoint.
        first, own: digests of the first rank and of this one.
        alike: see `parameters_alike`.
    """
    known = [path for path in shared if path in first and path in own]
    found = {path: own[path] for path in known if own[path] != first[path]}
    of_training = all(path in alike or path.startswith("optimizers.") for path in found)
    is_few = len(found) <= MOST and 2 * len(found) <= len(known)
    return found if of_training and is_few and not found.keys().isdisjoint(alike) else {}


def splits(told: Iterable[tuple[int, Mapping[str, str]]], world_size: int) -> list[Split]:
    """Returns which ranks are the odd ones.

    Args:
        told: (rank, what it found `diverged`) of all but the first rank, which the others are
            compared with.
    """
    differing = {rank: dict(found) for rank, found in told}
    found = []
    for path in sorted({path for paths in differing.values() for path in paths}):
        held = {rank: differing.get(rank, {}).get(path, "") for rank in range(world_size)}
        value, count = Counter(held.values()).most_common(1)[0]
        has_majority = 2 * count > world_size
        odd = [rank for rank in held if held[rank] != value] if has_majority else []
        found.append(Split(path, tuple(odd)))
    return found


LEAST_BYTES = 1024
"""Smaller tensors cost less than an entry in the table of digests."""

_AS_FIRST = "\0as the first rank"


def tensor_digests(state: Mapping[str, Any]) -> dict[str, str]:
    """Returns path → digest of the values, type and shape of each tensor that is not small."""
    with outside_autograd():
        return {
            path: _digest(tensor) for path, tensor in walk_tensors(dict(state)) if _is_large(tensor)
        }


def without_replicated(state: Mapping[str, Any], first: Mapping[str, str]) -> dict[str, Any]:
    """Returns a copy with a reference for each tensor that the first rank holds too.

    Args:
        state: of this rank; its tensors are not copied.
        first: `tensor_digests` of the first rank.
    """
    with outside_autograd():

        def replace(path: str, leaf: Any) -> Any:
            is_tensor = isinstance(leaf, torch.Tensor) and _is_large(leaf)
            return _AS_FIRST if is_tensor and first.get(path) == _digest(leaf) else leaf

        return dict(_mapped(dict(state), "", replace))


def with_replicated(state: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a rank's state, whole again.

    Raises:
        CheckpointDamaged: the first rank's state lacks what this one refers to.
    """
    tensors = dict(walk_tensors(dict(first)))

    def replace(path: str, leaf: Any) -> Any:
        if not (isinstance(leaf, str) and leaf == _AS_FIRST):
            return leaf
        if path not in tensors:
            raise CheckpointDamaged(f"{path}: not in the part of the first rank: use an older one")
        return tensors[path]

    return dict(_mapped(dict(state), "", replace))


def _mapped(value: Any, path: str, replace: Callable[[str, Any], Any]) -> Any:
    """Copies nested plain containers with each leaf replaced; paths are those of `walk`."""
    if isinstance(value, dict):
        return {
            key: _mapped(item, f"{path}.{key}" if path else str(key), replace)
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        items = (
            _mapped(item, f"{path}.{index}" if path else str(index), replace)
            for index, item in enumerate(value)
        )
        return type(value)(items)
    return replace(path, value)


def _is_large(tensor: torch.Tensor) -> bool:
    plain = local(tensor)
    return plain.layout == torch.strided and plain.nbytes >= LEAST_BYTES


def _digest(tensor: torch.Tensor) -> str:
    plain = local(tensor)
    checksum = xxhash.xxh3_128(f"{plain.dtype} {tuple(plain.shape)}\n".encode())
    checksum.update(bytes_of(tensor))
    return checksum.hexdigest()
