"""What the updates of an optimizer that torch does not ship say about its algebra."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.training_state.bounds.comparison import WEIGHT
from supervisor.training_state.bounds.families import candidate_for
from supervisor.training_state.bounds.optimizer_family import OptimizerFamily
from supervisor.training_state.bounds.rounding import Rounding
from supervisor.training_state.bounds.seen_update import SeenUpdate, sample
from supervisor.training_state.bounds.update_log import Update
from supervisor.training_state.tensors import outside_autograd

TENSORS = 64
"""Looked at in one update; a larger model is looked at in turns."""
ELEMENTS = 2048
"""Of one tensor."""
ENOUGH = 64
"""Elements that are exactly what the algebra makes of them."""
_Half = tuple[dict[str, torch.Tensor], torch.Tensor, Update, Rounding]


class ForeignOptimizer:
    """Watches single updates, one between two looks, from the second on.

    Attributes:
        family: that of its name and settings; None if it has none, or an update was another.
        is_proved: enough updates were the family's, element by element, and none was another.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.family: OptimizerFamily | None = candidate_for(optimizer)
        self._right = 0
        self._seen = 0
        self._wanted = 1
        self._open: list[tuple[torch.Tensor, _Half]] = []

    @property
    def is_proved(self) -> bool:
        return self.family is not None and self._right >= ENOUGH and self._seen >= self._wanted

    def begin(self, optimizer: Optimizer) -> None:
        """An update is about to be made."""
        family, self._open = self.family, []
        if family is None:
            return
        everything = [(p, group) for group in optimizer.param_groups for p in group["params"]]
        turns = max(1, math.ceil(len(everything) / TENSORS))
        self._wanted = turns
        with outside_autograd():
            for parameter, group in everything[self._seen % turns :: turns]:
                half = _before(parameter, optimizer.state.get(parameter, {}), group, family)
                if half is not None:
                    self._open.append((parameter, half))

    def end(self, optimizer: Optimizer) -> None:
        """It was made."""
        family, halves = self.family, self._open
        self._open = []
        if family is None or not halves:
            return
        right = wrong = 0
        with outside_autograd():
            for parameter, (before, gradient, update, rounding) in halves:
                entries = optimizer.state.get(parameter, {})
                seen = SeenUpdate(
                    before=before,
                    after=_sampled(parameter, entries),
                    gradient=gradient,
                    update=update,
                    count=_count(entries.get(family.counts)) if family.counts else 0,
                    rounding=rounding,
                )
                found = _explained(family, seen)
                right, wrong = right + found[0], wrong + found[1]
        self._seen += 1
        self._right += right
        if wrong:
            self.family = None


def _explained(family: OptimizerFamily, seen: SeenUpdate) -> tuple[int, int]:
    try:
        return family.explains(seen)
    except (TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError, RuntimeError):
        return 0, 1  # settings or entries that the family does not have


def _before(
    parameter: torch.Tensor, entries: Mapping[str, Any], group: Mapping[str, Any], family: Any
) -> _Half | None:
    gradient, rounding = parameter.grad, Rounding.of(parameter.dtype)
    if gradient is None or gradient.layout is not torch.strided or rounding is None:
        return None
    update = Update({key: group.get(key) for key in family.keys})
    return _sampled(parameter, entries), sample(gradient, ELEMENTS), update, rounding


def _sampled(parameter: torch.Tensor, entries: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    sampled = {WEIGHT: sample(parameter, ELEMENTS)}
    for key, value in entries.items():
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
            sampled[key] = sample(value, ELEMENTS)
    return sampled


def _count(value: object) -> int:
    if isinstance(value, torch.Tensor):
        # Not `.item()`: this read is ours, and is not on the tape.
        value = torch._C.TensorBase.item(value) if value.numel() == 1 else 0
    return int(value) if isinstance(value, (int, float)) else 0
