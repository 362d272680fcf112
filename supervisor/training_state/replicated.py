"""Writes what several ranks hold alike only once: the first rank's copy, to which the others
refer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import xxhash

from supervisor.errors import CheckpointDamaged
from supervisor.training_state.tensors import bytes_of, local, outside_autograd, walk_tensors

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
