"""Activations that have left their usual size."""

from __future__ import annotations

from supervisor.detectors.observed_growth import ObservedGrowthDetector
from supervisor.records import Cause, Severity


class ActivationGrowthDetector(ObservedGrowthDetector):
    """Largest absolute output of a layer against its median of earlier looks (``activation_max``).

    Args:
        factor: times the median.
        patience: looks in a row.
        window: looks that make the median.
    """

    name = "activation_growth"
    key = "activation_max"
    severity = Severity.MEDIUM
    category = "gradient"
    kind = "activation_growth"
    cause = Cause.DIVERGENCE

    def __init__(self, *, factor: float = 10.0, patience: int = 2, window: int = 20) -> None:
        super().__init__(factor=factor, patience=patience, window=window)

    def message(self, value: float, usual: float) -> str:
        return (
            f"the largest activation is {value:.4g}, {value / max(usual, 1e-300):.3g} x "
            "what it was; "
            "weights grow, or an input is out of range"
        )
