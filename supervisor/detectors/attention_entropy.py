"""Attention that looks at a single key."""

from __future__ import annotations

from supervisor.detectors.observed_line import ObservedLineDetector
from supervisor.records import Cause, Severity


class AttentionEntropyDetector(ObservedLineDetector):
    """Entropy of the sharpest layer's attention (looks, ``attention_entropy``).

    Mean over heads and queries, as a share of that of a uniform choice. Layers whose heads all
    collapse to one key precede instability (arXiv 2303.06296); single sharp heads are healthy.

    Args:
        line: share of the largest entropy.
        patience: looks in a row.
    """

    name = "attention_entropy"
    key = "attention_entropy"
    severity = Severity.MEDIUM
    category = "collapse"
    kind = "attention_entropy_collapse"
    cause = Cause.COLLAPSE
    is_low_bad = True

    def __init__(self, *, line: float = 0.02, patience: int = 3) -> None:
        super().__init__(line=line, patience=patience)

    def message(self, value: float) -> str:
        return (
            f"a layer's attention has {value:.2%} of the entropy of a free choice (line "
            f"{self.line:.2%}): "
            "each query sees one key; normalise queries and keys, or lower the learning rate"
        )
