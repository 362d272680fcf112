"""Names the shape of a loss explosion, which says what to look for (REQUIREMENTS K2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplosionShape:
    """How a loss went up.

    Attributes:
        name: ``sudden_jump``, ``exponential_growth``, ``oscillating_divergence``, or ``none``.
        onset: index into the losses given where the rise begins, -1 without one.
        factor: largest loss against the median before the onset; infinite after NaN.
        causes: what usually makes this shape, likeliest first.
    """

    name: str
    onset: int = -1
    factor: float = 1.0
    causes: tuple[str, ...] = ()


CAUSES = {
    "sudden_jump": (
        "one bad batch",
        "an overflow in half precision",
        "damaged weights or optimizer state",
    ),
    "exponential_growth": (
        "a learning rate too high",
        "gradients accumulated without division or without zero_grad",
    ),
    "oscillating_divergence": (
        "the optimizer's state: momentum too high or a second moment out of date",
        "a learning rate at the edge of stability",
    ),
    "none": (),
}


def name_shape(losses: Sequence[float]) -> ExplosionShape:
    """Names the explosion at the end of `losses`, of which 20 or more should be given.

    A jump gets most of its rise within two steps; an oscillation turns downwards in a quarter of
    its steps or more; growth is what else rises.
    """
    finite = [value for value in losses if math.isfinite(value) and value > 0]
    if len(finite) < 5:
        return ExplosionShape(name="none")
    logs = [math.log(v) if math.isfinite(v) and v > 0 else math.inf for v in losses]
    half = sorted(v for v in logs[: max(5, len(logs) // 2)] if v < math.inf)
    if not half:
        return ExplosionShape(name="none")
    usual = half[len(half) // 2]
    spread = max(half[int(0.9 * (len(half) - 1))] - usual, 0.02)
    onset = _onset(logs, usual + 3 * spread)
    peak = max(logs)
    if onset < 0 or peak < usual + max(math.log(1.5), 5 * spread):
        return ExplosionShape(name="none")
    name = _classify(logs[max(0, onset - 1) :], usual)
    factor = math.inf if math.isinf(peak) else math.exp(min(peak - usual, 700.0))
    return ExplosionShape(name=name, onset=onset, factor=factor, causes=CAUSES[name])


def _onset(logs: list[float], line: float) -> int:
    """First index of the last stretch that stays above `line` but for three steps in a row."""
    onset, below = -1, 0
    for index in range(len(logs) - 1, -1, -1):
        if logs[index] > line:
            onset, below = index, 0
        elif onset >= 0:
            below += 1
            if below >= 3:
                break
    return onset


def _classify(rise: list[float], usual: float) -> str:
    finite = [value for value in rise if math.isfinite(value)]
    if len(finite) < 3:
        return "sudden_jump"
    top = max(finite)
    if max(finite[:3]) - usual >= 0.7 * (top - usual):
        return "sudden_jump"
    steps = list(itertools.pairwise(finite))
    falls = sum(after < before - 0.05 * (top - usual) for before, after in steps)
    return "oscillating_divergence" if falls >= 0.25 * len(steps) else "exponential_growth"
