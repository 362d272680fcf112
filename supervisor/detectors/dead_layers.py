"""Layers without gradient while others learn."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class DeadLayersDetector(ObservedLineDetector):
    """Share of layers whose gradient is zero, from the observed value ``dead_layers_share``.

    Args:
        line: share that is worth an alert; single layers are without gradient by design, where
            parts are frozen or used now and then.
        patience: observations in a row; one batch may pass a branch by.
    """

    name = "dead_layers"
    key = "dead_layers_share"
    severity = Severity.MEDIUM
    category = "gradient"
    kind = "dead_layers"
    cause = Cause.DEAD_UNITS

    def __init__(self, *, line: float = 0.3, patience: int = 3) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"{value:.0%} of the layers have a zero gradient; look for dead ReLUs, "
            "detached branches, or fp16 underflow"
        )
