"""A single layer whose gradient explodes."""

from __future__ import annotations

from supervisor.detectors.base.observed_line import MIN_LOOKS, UsualLineDetector
from supervisor.records import Cause, Severity


class LayerGradientDetector(UsualLineDetector):
    """Largest gradient norm of one layer, before clipping, from the looks (``layer_gradient_max``).

    What is large depends on the loss, so the norm must also exceed what is usual in this run, once
    that is known.

    Args:
        line: norm above which a layer's gradient explodes; ten times the line of `gradient_health`,
            which is to report first.
        over_usual: multiple of the highest of the last `window` looks that were below the line.
        window: looks kept.
        patience: looks in a row; one bad batch is over at the next.
    """

    name = "layer_gradient"
    key = "layer_gradient_max"
    severity = Severity.MEDIUM
    category = "gradient"
    kind = "layer_gradient_explosion"
    cause = Cause.DIVERGENCE

    def __init__(
        self,
        *,
        line: float = 100.0,
        over_usual: float = 10.0,
        window: int = 100,
        patience: int = 2,
    ) -> None:
        super().__init__(line=line, over_usual=over_usual, window=window, patience=patience)

    def forget_levels(self) -> None:
        """Forgets what is usual: other data have other gradients."""
        self.reset()

    def closeness(self, value: float) -> float:
        usual = self._usual
        line = self.line
        if len(usual) >= MIN_LOOKS:
            line = max(line, self.over_usual * usual.highest)
        closeness = value / line
        if closeness < 1.0 or len(usual) < MIN_LOOKS:
            usual.add(value)
        return closeness

    def message(self, value: float) -> str:
        return (
            f"the gradient norm of one layer is {value:.4g} (line {self.line:g}); look at what "
            "feeds it, clip, or lower the learning rate"
        )
