"""The names of parameters without those of the wrappers around them."""

from __future__ import annotations

from collections.abc import Sequence

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
