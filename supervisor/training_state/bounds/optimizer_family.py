"""What a family of optimizers promises, and what its members share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from supervisor.training_state.bounds.limits import Affine, Limits
from supervisor.training_state.bounds.rounding import Rounding
from supervisor.training_state.bounds.seen_update import NOTHING, Explained, SeenUpdate
from supervisor.training_state.bounds.update_log import Update, UpdateLog

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
