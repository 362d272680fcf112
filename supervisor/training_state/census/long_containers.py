"""The tensors and arrays in the middle of long containers: banks of features, replay buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import xxhash

from supervisor.training_state.census.place import Place, write_item
from supervisor.training_state.tensors import bytes_of

LOOKED_THROUGH = 20_000
"""Items of a middle; of longer ones as many, evenly spread."""
ENTERED = 4_096
"""Tensors and arrays of a middle that are saved and put back; of more some are compared."""
COMPARED = 512
_VALUES = (torch.Tensor, np.ndarray)
_BYTES = 65_536
"""Of each of those."""
_ROW = 32
"""Fields of an item that is entered."""
Write: TypeAlias = Callable[[Any, Any, Any], None] | None


def of_middle(
    path: str, holder: Any, items: Sequence[tuple[str, Any, Any]], write: Write
) -> Iterator[Place]:
    """Lists them where they are few, and otherwise how many there are and what some of them hold:
    that can be compared, not put back.

    Args:
        path: of the container.
        holder: the container.
        items: name in a path, key and value of each item between the ends.
        write: as for `Place`.
    """
    stride = max(1, len(items) // LOOKED_THROUGH)
    found = [
        place
        for name, key, item in items[::stride]
        for place in _values_in(f"{path}[{name}]", item, holder, key, write)
    ]
    if stride == 1 and len(found) <= ENTERED:
        yield from found
    elif found:
        spread = found[:: max(1, len(found) // COMPARED)]
        yield Place(f"{path}.middle", (len(found), _digest([place.value for place in spread])))


def _values_in(path: str, item: Any, holder: Any, key: Any, write: Write) -> Iterator[Place]:
    if isinstance(item, _VALUES):
        yield Place(path, item, holder, key, write)
        return
    if isinstance(item, (tuple, list)) and len(item) <= _ROW:
        own = write_item if isinstance(item, list) else None
        for number, value in enumerate(item):
            if isinstance(value, _VALUES):
                yield Place(f"{path}[{number}]", value, item, number, own)
        return
    named = item if isinstance(item, dict) else getattr(item, "__dict__", {})
    for name, value in named.items() if len(named) <= _ROW else ():
        if isinstance(value, _VALUES) and isinstance(name, (str, int)):
            yield Place(f"{path}[{name!r}]", value, named, name, write_item)


def _digest(values: list[Any]) -> str:
    total = xxhash.xxh3_64()
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.device.type != "cpu":
                continue
            total.update(bytes_of(value)[:_BYTES])
        elif not value.dtype.hasobject:
            memory: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)[:_BYTES]
            total.update(memory)
    return total.hexdigest()
