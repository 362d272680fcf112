"""Tensors that all ranks held alike, and of which one rank holds another value now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.parallel import DistributedDataParallel

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
