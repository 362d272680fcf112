"""A layer that puts out the same for every sample."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class RepresentationCollapseDetector(ObservedLineDetector):
    """Share of a linear layer's output power that differs between samples (looks).

    ``representation_spread`` of the worst layer: its variance over samples, divided by its mean
    square. At 1e-4 samples differ by a hundredth of what they share.

    Args:
        line: share below which the layer has collapsed.
        patience: looks in a row.
    """

    name = "representation_collapse"
    key = "representation_spread"
    severity = Severity.HIGH
    advice = "look at its inputs and at the rate"
    category = "collapse"
    kind = "representation_collapse"
    cause = Cause.COLLAPSE
    is_low_bad = True

    def __init__(self, *, line: float = 1e-4, patience: int = 3) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"a layer's outputs differ between samples by {value:.2g} of their power (line "
            f"{self.line:g}): it has collapsed to a constant"
        )
