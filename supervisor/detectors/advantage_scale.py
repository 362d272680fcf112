"""Advantages whose scale runs away."""

from __future__ import annotations

from supervisor.detectors.observed_growth import ObservedGrowthDetector
from supervisor.records import Cause, Severity


class AdvantageScaleDetector(ObservedGrowthDetector):
    """Deviation of the advantages (``advantage_std``) against its own median.

    Args:
        factor: times the median. The update grows with it where advantages are not normalised.
        patience: observations in a row.
        window: observations that make the median.
    """

    name = "advantage_scale"
    key = "advantage_std"
    severity = Severity.MEDIUM
    category = "reward"
    kind = "advantage_scale"
    cause = Cause.DIVERGENCE

    def __init__(self, *, factor: float = 10.0, patience: int = 3, window: int = 50) -> None:
        super().__init__(factor=factor, patience=patience, window=window)

    def message(self, value: float, usual: float) -> str:
        return (
            f"advantages spread {value / max(usual, 1e-300):.3g} x as far as they did "
            f"({value:.4g}); "
            "normalise them, and look for rewards out of range"
        )
