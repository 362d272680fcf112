"""Attention logits that grow without bound."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class AttentionLogitsDetector(ObservedLineDetector):
    """Largest absolute attention logit (looks, ``attention_logit_max``).

    Transformers whose logits pass about 10^4 diverge (arXiv 2309.14322); large runs cap them at 100
    (arXiv 2507.20534). The line is between the two, hundreds of steps before the former.

    Args:
        line: logit.
        patience: looks in a row.
    """

    name = "attention_logits"
    key = "attention_logit_max"
    severity = Severity.MEDIUM
    category = "gradient"
    kind = "attention_logits_large"
    cause = Cause.DIVERGENCE

    def __init__(self, *, line: float = 300.0, patience: int = 3) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"attention logits have grown to {value:.4g} (line {self.line:g}): the softmax "
            "saturates and "
            "a divergence may follow; normalise queries and keys, or lower the learning rate"
        )
