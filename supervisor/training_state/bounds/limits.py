"""How far the state of one tensor can have come between two looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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

    Attributes:
        is_root: of `second`; else it is taken as it is.
    """

    first: str
    second: str
    constant: float
    slack: float
    is_root: bool = True


@dataclass(frozen=True, slots=True)
class Root:
    """``factor sqrt(entry)`` more, with the entry as at the second look."""

    entry: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one tensor's optimizer can have done to it and to its entries.

    Attributes:
        weight: bounds the change of each element; None if nothing is known.
        root: belongs to `weight`, if the family has it.
        memory: entry to which `Affine.of_memory` refers, empty if none.
        memory_limit: bounds the absolute value of that entry at the second look.
        floors: by entry.
        positive: entries that are never negative.
        pair: also a condition of `weight`, at the first look.
    """

    weight: Affine | None
    root: Root | None = None
    memory: str = ""
    memory_limit: Affine | None = None
    floors: Mapping[str, Floor] = field(default_factory=dict)
    positive: frozenset[str] = frozenset()
    pair: Pair | None = None
