"""A critic's loss that explodes."""

from __future__ import annotations

from supervisor.detectors.observed_growth import ObservedGrowthDetector
from supervisor.records import Cause, Severity


class ValueLossDetector(ObservedGrowthDetector):
    """The observed ``value_loss`` against its own median.

    Bursts of a few times the median belong to changing returns; ten times, again and again, do not.

    Args:
        factor: times the median.
        patience: observations in a row.
        window: observations that make the median.
    """

    name = "value_loss"
    key = "value_loss"
    severity = Severity.MEDIUM
    category = "reward"
    kind = "value_loss_explosion"
    cause = Cause.DIVERGENCE

    def __init__(self, *, factor: float = 10.0, patience: int = 3, window: int = 50) -> None:
        super().__init__(factor=factor, patience=patience, window=window)

    def message(self, value: float, usual: float) -> str:
        return (
            f"the value loss is {value:.4g}, {value / max(usual, 1e-300):.3g} x its "
            "median; clip it, normalise the returns, or lower the critic's learning rate"
        )
