"""What a family of optimizers promises, and what its members share.

One update of one tensor as it was seen, and whether a family's algebra explains it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from supervisor.worker.corruption.comparison import WEIGHT
from supervisor.worker.corruption.limits import Affine, Limits, Rounding, Update, UpdateLog


class Explained(NamedTuple):
    """Elements of one update that a family explains, and those that it does not.

    Elements of which the type's rounding leaves nothing to tell are neither.
    """

    right: int
    wrong: int


NOTHING = Explained(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenUpdate:
    """Some elements of a tensor and of its entries, right before and right after one update, FP64.

    Attributes:
        update: the group's settings then.
        count: which update of the tensor it was, from 1; 0 if its optimizer does not count.
        rounding: of the tensor's type.
    """

    before: Mapping[str, torch.Tensor]
    after: Mapping[str, torch.Tensor]
    gradient: torch.Tensor
    update: Update
    count: int
    rounding: Rounding

    def follows(
        self, entry: str, beta: float, given: torch.Tensor, most: torch.Tensor
    ) -> torch.Tensor:
        """Returns where an entry became ``beta entry + (1 - beta) given``.

        Args:
            most: absolute values of what `given` is a sum of, added up: it is rounded like these.
        """
        if entry not in self.after:
            return torch.zeros_like(given, dtype=torch.bool)
        old = self.before.get(entry, torch.zeros_like(given))
        wanted = beta * old + (1 - beta) * given
        size = (old.abs() + most) * max(1 - beta, _SHARE) + beta * old.abs()
        slack = ROUNDINGS * self.rounding.unit * size + ROUNDINGS * self.rounding.tiny
        return (self.after[entry] - wanted).abs() <= slack


ROUNDINGS = 8
_SHARE = 1e-4


def explained_by_lion(seen: SeenUpdate) -> Explained:
    """Each element loses its decay and moves by the learning rate, or not at all; and the momentum,
    if it has Lion's usual name, is an average of gradients."""
    rate, decay = seen.update.number("lr"), seen.update.number("weight_decay")
    share = rate * decay
    if not (rate > 0.0 and 0.0 <= share <= 1.0):
        return NOTHING
    before = seen.before[WEIGHT]
    moved = (seen.after[WEIGHT] - before * (1 - share)).abs()
    slack = 3 * seen.rounding.unit * (before.abs() + rate) + 4 * seen.rounding.tiny
    tells = (slack <= rate / 3) & moved.isfinite()
    is_step = (moved - rate).abs() <= slack + _CLOSE * rate
    right = tells & is_step
    wrong = tells & ~is_step & (moved > slack)
    if MOMENTUM in seen.after:
        _, beta = seen.update.betas
        follows = seen.follows(MOMENTUM, beta, seen.gradient, seen.gradient.abs())
        wrong |= ~follows & seen.gradient.isfinite()
    return Explained(int(right.sum()), int(wrong.sum()))


MOMENTUM = "exp_avg"


def explained_by_adam(seen: SeenUpdate) -> Explained:
    """Both moments and the weight are what Adam makes of them, with a decay of either kind."""
    decay = seen.update.number("weight_decay")
    first = _adam(seen, seen.gradient, seen.gradient.abs(), decay)
    if not first.wrong or not decay:
        return first
    added = decay * seen.before[WEIGHT]
    return _adam(seen, seen.gradient + added, seen.gradient.abs() + added.abs(), 0.0)


def _adam(seen: SeenUpdate, gradient: torch.Tensor, most: torch.Tensor, decay: float) -> Explained:
    update, unit = seen.update, seen.rounding.unit
    beta1, beta2 = update.betas
    if not seen.count or not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        return Explained(0, gradient.numel())
    before, after = seen.before[WEIGHT], seen.after[WEIGHT]
    sound = seen.follows("exp_avg", beta1, gradient, most)
    sound &= seen.follows("exp_avg_sq", beta2, gradient.square(), most.square())
    if not bool(sound.any()):
        return Explained(0, gradient.numel())
    rate, eps = update.number("lr"), update.number("eps")
    root = (seen.after["exp_avg_sq"].clamp(min=0) / (1 - beta2**seen.count)).sqrt()
    step = rate * seen.after["exp_avg"] / (1 - beta1**seen.count) / root
    rounded = 4 * unit * before.abs()
    tells = (root > _FAR * eps) & (step.abs() > ROUNDINGS * rounded) & step.isfinite()
    differs = (after - (before * (1 - rate * decay) - step)).abs()
    right = sound & tells & (differs <= _ALIKE * step.abs() + rounded)
    wrong = ~sound | (tells & ~right)
    wrong &= gradient.isfinite() & before.isfinite()
    return Explained(int(right.sum()), int(wrong.sum()))


_CLOSE = 1e-5
_ALIKE = 2e-3
_FAR = 1e4
"""Times epsilon, from where on its place in the formula makes no difference."""


def sample(tensor: torch.Tensor, most: int) -> torch.Tensor:
    """Returns a copy of at most so many elements, evenly spread, FP64."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, math.ceil(flat.numel() / most))].double().clone()


SLACK = 1e-3
"""Relative; for the rounding of what is computed from few numbers, such as a bias correction."""
OPERATIONS = 10
"""Roundings within one update of one element, at most."""


class OptimizerFamily(ABC):
    """Optimizers with the same algebra.

    Attributes:
        keys: values of a parameter group that `limits` reads.
        needs_norms: bounds need the norm of the gradients.
        needs_shape: bounds need the shape of the tensor.
        counts: entry in which the optimizer counts a tensor's updates; empty if it does not.
    """

    keys: tuple[str, ...]
    needs_norms: bool = False
    needs_shape: bool = False
    counts: str = "step"

    @abstractmethod
    def limits(self, log: UpdateLog) -> Limits | None:
        """Returns how far a tensor can have come; None where a condition of the proof fails.

        Raises:
            TypeError, ValueError, KeyError: the group holds something else than numbers.
        """

    def explains(self, seen: SeenUpdate) -> Explained:
        """Returns how many elements of one update are exactly what the algebra makes of them, for
        families that are not known by torch's own class."""
        return NOTHING


def drift(steps: Iterable[tuple[Affine, float]], rounding: Rounding) -> Affine:
    """Returns how far an element is at most from where it was.

    Args:
        steps: of each update, how far it moves the element at most, and the share of itself that
            it loses to a decoupled weight decay.
        rounding: of the tensor's type.
    """
    constant = of_weight = of_memory = 0.0
    unit, tiny = rounding.unit, 2 * rounding.tiny
    rounded = 1 + OPERATIONS * unit
    for moved, decay in steps:
        share = decay + 2 * unit * (1 + decay)
        kept = 1 + share
        constant = kept * constant + rounded * moved.constant + tiny
        of_weight = kept * of_weight + rounded * moved.of_weight + share
        of_memory = kept * of_memory + rounded * moved.of_memory
    return Affine(constant, of_weight, of_memory).times(1 + SLACK)


def decoupled(update: Update, *, is_on: bool) -> float | None:
    """Returns the share that a decoupled weight decay takes; None if it is no decay."""
    rate = update.number("lr")
    share = rate * update.number("weight_decay") if is_on else 0.0
    return share if 0.0 <= share <= 1.0 and rate >= 0.0 else None
