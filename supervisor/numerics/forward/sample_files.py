"""Loads samples and tensors from ``.pt`` files without running code from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from supervisor.errors import UsageError
from supervisor.numerics.forward.model_call import one_line
from supervisor.numerics.forward.tensor_tree import is_float, tensors_in


def load_sample(path: Path) -> Any:
    """Loads one input of a model: a tensor, or a tuple, list or dict of them.

    Raises:
        UsageError: no such file, it cannot be read safely, or there is no tensor in it.
    """
    sample = _load(path)
    shaped = isinstance(sample, (torch.Tensor, list, tuple, Mapping))
    if not shaped or not any(True for _ in tensors_in(sample)):
        raise UsageError(
            f"{path}: holds {type(sample).__name__} without a tensor: save one input with "
            "torch.save(x, path): a tensor, a tuple of arguments or a dict of keywords"
        )
    return sample


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Loads a tensor (named ``tensor``), or all tensors of a list, dict or state dict.

    Raises:
        UsageError: no such file, it cannot be read safely, or it has no floating tensor.
    """
    found = {
        place.lstrip(".") or "tensor": tensor.detach() for place, tensor in tensors_in(_load(path))
    }
    if not any(is_float(tensor) for tensor in found.values()):
        raise UsageError(
            f"{path}: no tensor of floating numbers in it: save one with torch.save(x, path), or a "
            "state_dict"
        )
    return found


def _load(path: Path) -> Any:
    if path.is_dir():
        raise UsageError(f"{path}: is a folder: give a file made with torch.save")
    if not path.is_file():
        raise UsageError(f"{path}: no such file: give a file made with torch.save")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise whatever their damage leads to
        if "weights_only" in str(error).lower():
            raise UsageError(
                f"{path}: holds objects other than tensors and plain containers, which could run "
                "code: save tensors, tuples, lists or dicts of them (of a model its state_dict())"
            ) from error
        raise UsageError(
            f"{path}: cannot be read ({one_line(error)}): make it with torch.save"
        ) from error
