"""From the risk that the ladder acts on to a probability that means what it says."""

from __future__ import annotations

from bisect import bisect_right

KNOTS: tuple[tuple[float, float], ...] = (
    (0.0, 0.037),
    (0.322, 0.396),
    (0.561, 0.396),
    (0.607, 0.63),
    (0.729, 0.63),
    (0.931, 0.755),
)
"""(risk, share of steps with about this risk at which a crash began within 20 steps or was under
way): isotonic regression on 66,058 steps of 178 runs, the train split of benchmarks/corpus, by
``python -m benchmarks.calibrate``. Of those runs two fifths crash, so the shares hold for a run in
as much danger as that; a run that is known to be safe has less at every risk."""

RISKS = [risk for risk, _ in KNOTS]


def calibrate(risk: float) -> float:
    """The probability of a crash within 20 steps at `risk`, linear between `KNOTS`."""
    right = min(max(1, bisect_right(RISKS, risk)), len(KNOTS) - 1)
    (low, below), (high, above) = KNOTS[right - 1], KNOTS[right]
    share = min(1.0, max(0.0, (risk - low) / (high - low)))
    return below + share * (above - below)
