"""How far the state of a tensor can have come between two looks, from the updates and rounding."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Affine:
    """A bound ``constant + of_weight |w| + of_memory |b|``, with `w` and `b` as at the first look.

    Attributes:
        of_memory: of the optimizer's entry that the family's `Limits.memory` names.
    """

    constant: float = 0.0
    of_weight: float = 0.0
    of_memory: float = 0.0

    def plus(self, other: Affine, factor: float = 1.0) -> Affine:
        """Returns this and `factor` times the other."""
        return Affine(
            self.constant + factor * other.constant,
            self.of_weight + factor * other.of_weight,
            self.of_memory + factor * other.of_memory,
        )

    def times(self, factor: float) -> Affine:
        return Affine().plus(self, factor)


@dataclass(frozen=True, slots=True)
class Floor:
    """An entry that never falls faster: at the second look ``factor`` times what it was, or more,
    less ``slack``."""

    factor: float
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """``|first| <= constant sqrt(second) + slack`` (Cauchy-Schwarz), at every look.

    It holds at the second look if it held at the first one, with this or a smaller constant.
    """

    first: str
    second: str
    constant: float
    slack: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one tensor's optimizer can have done to it and to its entries.

    Attributes:
        weight: bounds the change of each element; None if nothing is known.
        memory: entry to which `Affine.of_memory` refers, empty if none.
        memory_limit: bounds the absolute value of that entry at the second look.
        floors: by entry.
        positive: entries that are never negative.
        pair: also a condition of `weight`, at the first look.
    """

    weight: Affine | None
    memory: str = ""
    memory_limit: Affine | None = None
    floors: Mapping[str, Floor] = field(default_factory=dict)
    positive: frozenset[str] = frozenset()
    pair: Pair | None = None


@dataclass(frozen=True, slots=True)
class Rounding:
    """Of one type.

    Attributes:
        unit: the largest relative error of one operation (half a unit in the last place).
        tiny: the largest absolute error where numbers underflow, also on hardware that flushes
            subnormal numbers to zero.
        smallest: what a constant must be at least so as not to become zero itself.
    """

    unit: float
    tiny: float
    smallest: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Rounding | None:
        """Returns that of `dtype`; None for types without bounds (complex, 8 bit, integers)."""
        return _KNOWN.get(dtype)


def _rounding(dtype: torch.dtype) -> Rounding:
    info = torch.finfo(dtype)
    return Rounding(unit=info.eps / 2, tiny=info.tiny, smallest=info.tiny)


_KNOWN = {
    dtype: _rounding(dtype)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}


@dataclass(frozen=True, slots=True)
class Update:
    """One update.

    Attributes:
        settings: the group's values that the family reads, as they were in this update.
        norm: no element of a gradient was larger; infinite if that is not known.
    """

    settings: Mapping[str, Any]
    norm: float = math.inf

    def number(self, name: str) -> float:
        """Returns a value of the group, 0 where it has none.

        Raises:
            TypeError: it is a tensor, which may have changed since.
        """
        value = self.settings.get(name, 0.0)
        if not isinstance(value, (bool, int, float)):
            raise TypeError(f"{name} is no number")
        return float(value)

    def is_on(self, name: str) -> bool:
        return bool(self.settings.get(name))

    @property
    def betas(self) -> tuple[float, float]:
        first, second = self.settings["betas"]
        if not (isinstance(first, (int, float)) and isinstance(second, (int, float))):
            raise TypeError("betas are no numbers")
        return float(first), float(second)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateLog:
    """The updates of one tensor's group between two looks.

    Attributes:
        updates: oldest first.
        took_all: the tensor took part in all of them; else in some, and nobody knows in which.
        start: updates of this tensor before the first look; 0 where the optimizer does not count.
        has_memory: the optimizer had entries for this tensor at the first look.
        rounding: of the tensor's type.
        shape: of the tensor, where the family needs it.
    """

    updates: tuple[Update, ...]
    took_all: bool = True
    start: int
    has_memory: bool
    rounding: Rounding
    shape: tuple[int, ...] = ()

    def counts(self, index: int) -> tuple[int, int]:
        """Returns which update of the tensor, from 1, the update `index` was, at least and at
        most."""
        latest = self.start + index + 1
        return (latest, latest) if self.took_all else (self.start + 1, latest)


FIRST = 6
"""Roundings of one step of a first moment (``lerp_``), relative to the sum of its two parts."""
SECOND = 4
"""Roundings of one step of a second moment (``mul_``, ``addcmul_``), its constants' included."""
LOST = 3
"""Underflows of one step of either."""


@dataclass(frozen=True, slots=True)
class Averages:
    """``m = keep1 m + take1 |g|`` at most and ``v = keep2 v + take2 g^2`` at least, less `lost`.

    Attributes:
        lost: what underflows in one step of either.
    """

    keep1: float
    take1: float
    keep2: float
    take2: float
    lost: float

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, beta1: float, beta2: float, rounding: Rounding) -> Averages | None:
        """Returns them; None if the betas are not those of averages."""
        if not (0.0 <= beta1 < 1.0 and 0.0 <= beta2 < 1.0):
            return None
        up, down = 1 + FIRST * rounding.unit, 1 - SECOND * rounding.unit
        return cls(
            keep1=beta1 * up,
            take1=(1 - beta1) * up,
            keep2=beta2 * down,
            take2=(1 - beta2) * down,
            lost=LOST * rounding.tiny,
        )

    def root_constant(self) -> float:
        """Returns C with ``|m| <= C sqrt(v)``; infinite where Cauchy-Schwarz gives none."""
        if not self.keep1 * self.keep1 < self.keep2:
            return math.inf
        return self.take1 / math.sqrt(self.take2 * (1 - self.keep1 * self.keep1 / self.keep2))

    def root_slack(self, constant: float) -> float:
        """Returns what underflow adds to ``C sqrt(v)``."""
        if self.keep1 >= 1.0:
            return math.inf
        return (constant * math.sqrt(self.lost) + self.lost) / (1 - self.keep1)

    def gradient_over_root(self, eps: float) -> float:
        """Returns the largest ``|g| / (sqrt(v) + eps)`` right after `g` went into `v`."""
        root = math.sqrt(self.take2)
        return 1 / root + math.sqrt(self.lost) / root / eps


def floor_of(keeps: Iterable[float], lost: float) -> Floor:
    """Returns the floor of an average that keeps these shares of itself, one an update."""
    factor, slack = 1.0, 0.0
    for keep in keeps:
        factor, slack = factor * keep, slack * keep + lost
    return Floor(factor, slack)
