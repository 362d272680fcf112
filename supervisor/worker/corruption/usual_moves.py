"""Weights whose optimizer is not known: no bound, but what they have done so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.corruption.claims import FEW, GROWN, SMALLEST

LOOKS = 5
"""Windows between looks that tell how far elements of a tensor usually move."""
FAR = 100.0
"""Times the farthest move in all windows before."""


@dataclass(slots=True, eq=False)
class WeightAndCopy:
    """A weight and what it was at the last look."""

    name: str
    live: torch.Tensor
    kept: torch.Tensor


@dataclass(slots=True)
class _Course:
    largest: float = 0.0
    looks: int = 0
    is_told: bool = False


@dataclass(slots=True)
class UsualMoves:
    """Finds single elements that moved incomparably farther than any did before.

    That is learned, not proved, so it is only ever a warning, one for each tensor.
    """

    _courses: dict[str, _Course] = field(default_factory=dict)

    def compare(self, pairs: Sequence[WeightAndCopy]) -> list[str]:
        """Called at a look; returns what to warn of."""
        fitting = [pair for pair in pairs if _fits(pair)]
        if not fitting:
            return []
        with outside_autograd():
            live = [pair.live.detach() for pair in fitting]
            kept = [pair.kept.to(tensor.device) for pair, tensor in zip(fitting, live, strict=True)]
            moved = torch._foreach_sub(live, kept)
            sizes = torch._foreach_norm(moved, math.inf)
            farthest = torch.stack([size.float() for size in sizes]).tolist()
            told = [
                self._take_in(pair, size, tensor)
                for pair, size, tensor in zip(fitting, farthest, moved, strict=True)
            ]
        return [text for text in told if text]

    def _take_in(self, pair: WeightAndCopy, size: float, moved: torch.Tensor) -> str:
        course = self._courses.setdefault(pair.name, _Course())
        limit = FAR * course.largest
        if course.looks >= LOOKS and course.largest and not size <= limit:
            found = _few(pair, moved, limit)
            if found and not course.is_told:
                course.is_told = True
                return (
                    f"{pair.name}: {found}, {FAR:.0f} times farther than any element of it did "
                    "between two looks before; its optimizer is not known, so this is no proof of "
                    "a flipped bit, and nothing is done"
                )
            if found:
                return ""
        if math.isfinite(size):
            course.largest = max(course.largest, size)
            course.looks += 1
        return ""


def _fits(pair: WeightAndCopy) -> bool:
    live, kept = pair.live, pair.kept
    return (
        live.shape == kept.shape
        and live.dtype is kept.dtype
        and live.is_floating_point()
        and live.layout is torch.strided
        and live.numel() >= SMALLEST
    )


def _few(pair: WeightAndCopy, moved: torch.Tensor, limit: float) -> str:
    """Returns which elements moved beyond `limit`, if they are few and grew out of the tensor."""
    far = ~(moved.reshape(-1).abs() <= limit)
    values = pair.live.detach().reshape(-1)[far]
    grown = ~(values.abs() <= GROWN * pair.kept.to(values.device).abs().max())
    if not 0 < len(values) <= FEW or not bool(grown.all()):
        return ""
    before = pair.kept.reshape(-1)[far.cpu() if pair.kept.device.type == "cpu" else far]
    return f"an element went from {_first(before):.6g} to {_first(values):.6g}"


def _first(values: torch.Tensor) -> float:
    # Not `.item()`: this read is ours, and is not on the tape.
    return float(torch._C.TensorBase.item(values[0]))
