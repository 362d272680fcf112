"""A table of the detectors that are only a line on one observed value."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.detectors.base.observed_line import ObservedGrowthDetector, ObservedLineDetector
from supervisor.records import Cause, Severity


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row: an alert when the value `key` is beyond `line` for `patience` looks in a row.

    Attributes:
        key: of the observed value.
        is_low_bad: a value below the line is beyond it.
        message: of the alert, with places for ``value``, ``line`` and ``patience``.
        advice: appended to a message that does not say what to do.
    """

    key: str
    line: float
    patience: int
    severity: Severity = Severity.MEDIUM
    category: str
    kind: str
    cause: Cause
    is_low_bad: bool = False
    message: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One row: an alert when the value `key` is `factor` times its median of `window` looks.

    Attributes:
        key: of the observed value.
        message: of the alert, with places for ``value`` and ``grown`` (multiple of the median).
    """

    key: str
    factor: float = 10.0
    patience: int
    window: int
    category: str
    kind: str
    message: str


# The reason for each line stands beside it.
LINES = {
    "activation_range": Line(
        key="activation_range",  # of an FP16 activation, as a share of 65,504
        line=0.9,  # about 60,000: the next doubling is infinite
        patience=1,
        severity=Severity.HIGH,
        category="precision",
        kind="activation_near_overflow",
        cause=Cause.NONFINITE,
        message="an FP16 activation has reached {value:.0%} of the format's largest number",
        advice="run that layer in FP32 or BF16, or normalise its input",
    ),
    "dead_units": Line(
        key="dead_units_share",  # of the ReLU layer with the most units that no sample activates
        line=0.95,  # sparse layers rest at up to 0.8 with small batches
        patience=3,
        category="collapse",
        kind="dead_units",
        cause=Cause.DEAD_UNITS,
        message="{value:.0%} of a layer's ReLU units were zero for a whole batch; a lower learning "
        "rate, a leaky activation or another initialisation helps, and what has died stays dead",
    ),
    "representation_collapse": Line(
        key="representation_spread",  # variance over samples by mean square, of the worst layer
        line=1e-4,  # samples differ by a hundredth of what they share
        patience=3,
        severity=Severity.HIGH,
        category="collapse",
        kind="representation_collapse",
        cause=Cause.COLLAPSE,
        is_low_bad=True,
        message="a layer's outputs differ between samples by {value:.2g} of their power (line "
        "{line:g}): it has collapsed to a constant",
        advice="look at its inputs and at the rate",
    ),
    "attention_logits": Line(
        key="attention_logit_max",
        line=300.0,  # transformers diverge from 1e4 on (arXiv 2309.14322); caps are at 100
        patience=3,
        category="gradient",
        kind="attention_logits_large",
        cause=Cause.DIVERGENCE,
        message="attention logits have grown to {value:.4g} (line {line:g}): the softmax "
        "saturates and a divergence may follow; normalise queries and keys, or lower the learning "
        "rate",
    ),
    "attention_entropy": Line(
        key="attention_entropy",  # mean of the sharpest layer, as a share of a uniform choice's
        line=0.02,  # whole layers that see one key (arXiv 2303.06296); sharp heads are healthy
        patience=3,
        category="collapse",
        kind="attention_entropy_collapse",
        cause=Cause.COLLAPSE,
        is_low_bad=True,
        message="a layer's attention has {value:.2%} of the entropy of a free choice (line "
        "{line:.2%}): each query sees one key; normalise queries and keys, or lower the learning "
        "rate",
    ),
    "dead_layers": Line(
        key="dead_layers_share",
        line=0.3,  # single layers are without gradient by design: frozen, or used now and then
        patience=3,  # one batch may pass a branch by
        category="gradient",
        kind="dead_layers",
        cause=Cause.DEAD_UNITS,
        message="{value:.0%} of the layers have a zero gradient; look for dead ReLUs, detached "
        "branches, or fp16 underflow",
    ),
    "policy_step": Line(
        key="approx_kl",
        line=0.1,  # PPO ends an epoch of updates at 0.01 to 0.05 nats
        patience=3,
        category="reward",
        kind="policy_step_large",
        cause=Cause.LEARNING_RATE,
        message="an update moves the policy by {value:.3g} nats (line {line:g}), {patience} times "
        "in a row; lower the learning rate, or do fewer epochs on each batch",
    ),
    "no_advantage": Line(
        key="zero_advantage_share",
        line=0.9,  # with less than a tenth of the batch an update is mostly noise
        patience=20,  # hard or easy tasks come in runs
        category="reward",
        kind="no_advantage",
        cause=Cause.PLATEAU,
        message="{value:.0%} of the advantages are zero for {patience} observations: the batches "
        "teach nothing; take tasks of another difficulty, or look at the reward",
    ),
    "entropy_collapse": Line(
        key="entropy",
        line=0.1,  # nats: a choice of two that is taken 98 times in 100
        patience=20,  # single batches may be easy
        severity=Severity.HIGH,
        category="collapse",
        kind="entropy_collapse",
        cause=Cause.COLLAPSE,
        is_low_bad=True,
        message="the entropy is {value:.3g} nats (line {line:g}) for {patience} observations",
        advice="raise the entropy bonus or lower the learning rate",
    ),
    "loader_wait": Line(
        key="loader_wait_share",
        line=0.5,  # half of the time is what more loader workers can win back
        patience=5,  # the first batch of an epoch always takes longer
        severity=Severity.LOW,
        category="resources",
        kind="loader_stall",
        cause=Cause.RESOURCES,
        message="{value:.0%} of a step is spent waiting for data, {patience} looks in a row; more "
        "loader workers, or cheaper loading, would speed the training up",
    ),
}
"""Detector → its line."""

GROWTHS = {
    "activation_growth": Growth(
        key="activation_max",  # the largest absolute output of a layer
        patience=2,
        window=20,
        category="gradient",
        kind="activation_growth",
        message="the largest activation is {value:.4g}, {grown:.3g} x what it was; weights grow, "
        "or an input is out of range",
    ),
    "advantage_scale": Growth(
        key="advantage_std",  # the update grows with it where advantages are not normalised
        patience=3,
        window=50,
        category="reward",
        kind="advantage_scale",
        message="advantages spread {grown:.3g} x as far as they did ({value:.4g}); normalise them, "
        "and look for rewards out of range",
    ),
    "value_loss": Growth(
        key="value_loss",  # a few times the median belong to changing returns
        patience=3,
        window=50,
        category="reward",
        kind="value_loss_explosion",
        message="the value loss is {value:.4g}, {grown:.3g} x its median; clip it, normalise the "
        "returns, or lower the critic's learning rate",
    ),
}
"""Detector → the growth that it reports."""


def detector_of_line(row_name: str, row: Line) -> type[ObservedLineDetector]:
    """Returns the detector of one row; its settings are ``line`` and ``patience``."""

    @dataclass(kw_only=True, eq=False, repr=False)
    class LineDetector(ObservedLineDetector):
        name = row_name
        key, category, kind, cause = row.key, row.category, row.kind, row.cause
        severity, advice, is_low_bad = row.severity, row.advice, row.is_low_bad

        line: float = row.line
        patience: int = row.patience

        def message(self, value: float) -> str:
            return row.message.format(value=value, line=self.line, patience=self.patience)

    return LineDetector


def detector_of_growth(row_name: str, row: Growth) -> type[ObservedGrowthDetector]:
    """Returns the detector of a growth; its settings are ``factor``, ``patience`` and
    ``window``."""

    @dataclass(kw_only=True, eq=False, repr=False)
    class GrowthDetector(ObservedGrowthDetector):
        name = row_name
        key, category, kind = row.key, row.category, row.kind
        severity, cause = Severity.MEDIUM, Cause.DIVERGENCE

        factor: float = row.factor
        patience: int = row.patience
        window: int = row.window

        def message(self, value: float, usual: float) -> str:
            return row.message.format(value=value, grown=value / max(usual, 1e-300))

    return GrowthDetector
