"""Tensors inside whatever a module takes or returns: tuples, mappings, dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each tensor of `value` with its path: ``""``, ``[0]``, ``.logits``, ``.past[1]``."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            step = f".{key}" if isinstance(key, str) else f"[{key!r}]"
            yield from tensors_in(item, path + step)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{path}[{index}]")
    elif _is_record(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None), f"{path}.{field.name}")


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns `value` with every tensor changed; containers are copied, other things shared."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(item, change) for key, item in value.items()}
        return changed if type(value) is dict else _filled(value, changed)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    if _is_record(value):
        record = copy.copy(value)
        for field in dataclasses.fields(value):
            item = map_tensors(getattr(value, field.name, None), change)
            object.__setattr__(record, field.name, item)
        return record
    return value


def is_float(tensor: torch.Tensor) -> bool:
    """Whether it is dense and of a real or complex floating type."""
    dense = tensor.layout == torch.strided and not tensor.is_nested
    return dense and (tensor.is_floating_point() or tensor.is_complex())


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Returns `value` with real floating tensors in `dtype`; all tensors are detached copies."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        apart = tensor.detach().clone()
        return apart.to(dtype) if tensor.is_floating_point() else apart

    return map_tensors(value, change)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _filled(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same class with other values, if the class allows that."""
    try:
        filled = copy.copy(mapping)
        for key, item in items.items():
            filled[key] = item  # type: ignore[index]
        return filled
    except TypeError:  # read-only mappings
        return items
