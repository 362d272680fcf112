"""From the contributions to a risk to a probability that means what it says, and its reason."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from supervisor.codes import Subject
from supervisor.records import StepRecord

STRONG = 0.5
"""Contribution that counts as evidence of its own; the figures below were fitted with it."""

EVIDENCE: dict[str, tuple[float, float, float, float]] = {
    "nonfinite": (0.8, 0.9, 0.95, 0.95),
    "loss_scale": (0.6, 0.9, 0.9, 0.95),
    "steady_climb": (0.6, 0.9, 0.6, 0.9),
    "loss_persistence": (0.6, 0.6, 0.92, 0.8),
    "loss_leap": (0.6, 0.51, 0.6, 0.51),
    "departure": (0.55, 0.55, 0.69, 0.59),
    "reward_fall": (0.55, 0.55, 0.69, 0.59),
    "slow_divergence": (0.55, 0.52, 0.85, 0.55),
}
"""Signal → (lowest contribution, evidence then, highest, evidence then); of others the contribution
counts as it is. Contributions say which treatment is due, evidence how seldom the signal was wrong
on the corpus' train and validation splits: climbs and scales that fall never were, leaps often."""

AGREEMENT = 0.01
"""More evidence for each further strong signal."""

KNOTS: tuple[tuple[float, float], ...] = (
    (0.0, 0.023),
    (0.343, 0.316),
    (0.561, 0.548),
    (0.903, 0.74),
    (1.0, 0.75),
)
"""(evidence, share of steps with about this evidence at which a crash began within 20 steps or was
under way): isotonic regression on 89,048 steps of the train and validation splits of
benchmarks/corpus, by ``python -m benchmarks.calibrate``. Of those runs two fifths crash, so the
shares hold for a run in as much danger as that; a run that is known to be safe has less at every
evidence."""


def weigh(contributions: Mapping[str, float]) -> float:
    """The evidence for a crash in a step's `contributions`, 0...1."""
    most, alarms = 0.0, 0
    for name, risk in contributions.items():
        alarms += risk >= STRONG
        evidence = risk
        if name in EVIDENCE:
            low, weak, high, strong = EVIDENCE[name]
            share = min(1.0, (risk - low) / (high - low)) if high > low else 1.0
            # below the lowest it waits for more
            evidence = weak + share * (strong - weak) if risk >= low else min(risk, weak)
        most = max(most, evidence)
    return min(1.0, most + AGREEMENT * max(0, alarms - 1))


_EVIDENCES = [evidence for evidence, _ in KNOTS]


def calibrate(evidence: float) -> float:
    """The probability of a crash within 20 steps at `evidence`, linear between `KNOTS`."""
    right = min(max(1, bisect_right(_EVIDENCES, evidence)), len(KNOTS) - 1)
    (low, below), (high, above) = KNOTS[right - 1], KNOTS[right]
    share = min(1.0, max(0.0, (evidence - low) / (high - low)))
    return below + share * (above - below)


SUBJECTS = {
    **dict.fromkeys(("loss_warning", "loss_leap", "loss_persistence"), Subject.LOSS),
    **dict.fromkeys(("steady_climb", "departure"), Subject.LOSS),
    **dict.fromkeys(("first_rows", "rise_from_zero", "lost_at_restart"), Subject.LOSS),
    "gradient_warning": Subject.GRADIENT,
}
"""Signal → the figure that its reason speaks of."""


def subject_of(main: str, record: StepRecord) -> Subject | None:
    """The figure that the reason speaks of."""
    if main == "nonfinite":
        return Subject.LOSS if record.has_nonfinite_loss else Subject.GRADIENT
    return SUBJECTS.get(main)
