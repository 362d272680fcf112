"""Rectified units that are never active."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class DeadUnitsDetector(ObservedLineDetector):
    """Share of zero units in the deadest ReLU layer, from the looks (``dead_units_share``).

    A unit counts as dead when no sample of the looked-at batch made it active. Sparse layers rest
    at up to 80 % with small batches, so the line is above AUTOTRAINER's 70 % of zero gradients.

    Args:
        line: share of units.
        patience: looks in a row.
    """

    name = "dead_units"
    key = "dead_units_share"
    severity = Severity.MEDIUM
    category = "collapse"
    kind = "dead_units"
    cause = Cause.DEAD_UNITS

    def __init__(self, *, line: float = 0.95, patience: int = 3) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"{value:.0%} of a layer's ReLU units were zero for a whole batch; a lower "
            "learning rate, a "
            "leaky activation or another initialisation helps, and what has died stays dead"
        )
