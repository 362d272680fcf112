"""How a forward's arguments look: what decides the shapes of its output."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import Module

MOST_VALUES = 1000
"""Of one call: an argument may lead to the whole program."""


def argument_form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what two calls have in common whose outputs look alike; it can be hashed.

    Shapes and types of tensors, wherever they lie in objects and containers, and the numbers and
    texts among the direct arguments.
    """
    plain = tuple(v for v in (*args, *kwargs.values()) if isinstance(v, (int, str, bool)))
    return (plain, *_shapes([*args, *kwargs.values()]))


def _shapes(arguments: Sequence[Any]) -> Iterator[Any]:
    waiting = deque(arguments)
    met: dict[
        int, Any
    ] = {}  # values that are made when they are asked for are kept, with their ids
    while waiting and len(met) < MOST_VALUES:
        value = waiting.popleft()
        if id(value) in met:
            continue
        met[id(value)] = value
        if isinstance(value, (torch.Tensor, np.ndarray)):
            yield value.shape, value.dtype
        elif isinstance(value, (list, tuple)):
            yield len(value)
            waiting.extend(value)
        elif isinstance(value, Mapping):
            yield len(value)
            waiting.extend(value.values())
        elif not isinstance(value, (Module, type)):
            waiting.extend(getattr(value, "__dict__", {}).values())
