"""A policy or an attention that has stopped to choose."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class EntropyCollapseDetector(ObservedLineDetector):
    """Entropy in nats, from the observed value ``entropy``.

    Args:
        line: entropy below which it has collapsed; a choice of two that is taken 98 times in 100
            has 0.1 nats.
        patience: observations in a row; single batches may be easy.
    """

    name = "entropy_collapse"
    key = "entropy"
    severity = Severity.HIGH
    advice = "raise the entropy bonus or lower the learning rate"
    category = "collapse"
    kind = "entropy_collapse"
    cause = Cause.COLLAPSE
    is_low_bad = True

    def __init__(self, *, line: float = 0.1, patience: int = 20) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"the entropy is {value:.3g} nats (line {self.line:g}) for {self.patience} observations"
        )
