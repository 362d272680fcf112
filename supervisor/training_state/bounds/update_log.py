"""What the updates of one parameter group were, as far as bounds need to know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.training_state.bounds.rounding import Rounding


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
