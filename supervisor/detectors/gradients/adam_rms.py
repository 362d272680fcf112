"""Adam's update: its size leads the loss by a few steps."""

from __future__ import annotations

from supervisor.detectors.base.usual_line import MIN_LOOKS, UsualLineDetector
from supervisor.records import Cause, Severity


class AdamRmsDetector(UsualLineDetector):
    """RMS of the gradient over Adam's second moment, from the looks (``adam_rms``).

    sqrt(mean(g^2 / max(v, eps^2))) of the worst tensor is about 1 while the second moment is up to
    date; above 2.3 a loss spike follows within 1 to 8 steps (arXiv 2304.13013). Small batches are
    noisier, so the value must also exceed what is usual in this run.

    Args:
        line: value from which the second moment counts as stale.
        over_usual: multiple of the highest of the last `window` looks that were below the line.
        window: looks.
        patience: looks in a row.
    """

    name = "adam_rms"
    key = "adam_rms"
    severity = Severity.MEDIUM
    category = "gradient"
    kind = "stale_second_moment"
    cause = Cause.DIVERGENCE

    def __init__(
        self,
        *,
        line: float = 2.3,
        over_usual: float = 1.5,
        window: int = 100,
        patience: int = 1,
    ) -> None:
        super().__init__(line=line, over_usual=over_usual, window=window, patience=patience)

    def closeness(self, value: float) -> float:
        usual = self._usual
        known = usual.highest if len(usual) >= MIN_LOOKS else self.line
        closeness = value / max(self.line, self.over_usual * known)
        if closeness < 1.0:
            usual.add(value)
        return closeness

    def message(self, value: float) -> str:
        return (
            f"the gradient is {value:.3g} x what Adam's second moment expects; a spike may "
            "follow within a few steps; a smaller beta2 or update clipping helps"
        )
