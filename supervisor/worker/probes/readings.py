"""Figures that are still on their device, read together at the end of a look.

A part of a large tensor that stands for all of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch


class Readings:
    """Collects (figure, where, scalar tensor); `take` gives one number a figure.

    Attributes:
        places: figure → (where, value) of the newest `take`, the most telling first, five at most.
    """

    def __init__(self) -> None:
        self.places: dict[str, list[tuple[str, float]]] = {}
        self._found: list[tuple[str, str, torch.Tensor]] = []
        self._falling: set[str] = set()

    def clear(self) -> None:
        self._found = []

    def largest(self, figure: str, where: str, value: torch.Tensor) -> None:
        """The largest of all values of `figure` is its number."""
        self._found.append((figure, where, value))

    def smallest(self, figure: str, where: str, value: torch.Tensor) -> None:
        """The smallest of all values of `figure` is its number."""
        self._falling.add(figure)
        self._found.append((figure, where, value))

    def take(self) -> dict[str, float]:
        found, self._found = self._found, []
        self.places = {}
        values: dict[int, float] = {}
        for device in {tensor.device for _, _, tensor in found}:
            chosen = [index for index, entry in enumerate(found) if entry[2].device == device]
            read: list[Any] = torch.stack([found[i][2].float() for i in chosen]).tolist()
            values |= zip(chosen, read, strict=True)
        for index, (figure, where, _) in enumerate(found):
            if math.isfinite(values[index]):
                self.places.setdefault(figure, []).append((where, values[index]))
        for figure, places in self.places.items():
            places.sort(key=lambda place: place[1], reverse=figure not in self._falling)
            del places[5:]
        return {figure: places[0][1] for figure, places in self.places.items()}


def strided(tensor: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns at most `limit` elements, evenly over `tensor`, as one dimension; a view if it can.

    The same for every tensor of a shape, so that a gradient and its second moment fit together.
    """
    flat = tensor.detach().reshape(-1)
    return flat if flat.numel() <= limit else flat[:: -(-flat.numel() // limit)]


def rows_of(tensor: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns the first rows of `tensor` that have at most `limit` elements together; one at least.

    Whole rows, because large activations sit at single positions of a sample.
    """
    tensor = tensor.detach()
    if tensor.numel() <= limit or tensor.dim() == 0:
        return tensor
    return tensor[: max(1, limit * tensor.shape[0] // tensor.numel())]
