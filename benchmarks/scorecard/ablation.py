"""What each signal adds: the card without it, and with it alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.scorecard.card import card
from benchmarks.scorecard.measurement import Measurement
from supervisor.config import load_policy


def ablate(measured: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """Signal → its card without it and alone.

    The risk is the largest contribution, so leaving one out is the largest of the others. The
    windows stay those of the whole predictor.
    """
    names = sorted({name for m in measured for name in m.contributions})
    return {
        name: {
            "without": _short(card(measured, lambda m, n=name: _alarm(m, without=n))),
            "alone": _short(card(measured, lambda m, n=name: _alarm(m, only=n))),
        }
        for name in names
    }


def _alarm(m: Measurement, *, without: str = "", only: str = "") -> np.ndarray:
    kept = [
        value
        for name, value in m.contributions.items()
        if name != without and (not only or name == only)
    ]
    return np.max([np.zeros(len(m.risk)), *kept], axis=0) >= load_policy().alarm_threshold


def _short(figures: dict[str, Any]) -> dict[str, Any]:
    keys = ("found_before_peak", "found_at_most_5_later", "false_alarms", "lead_quartiles")
    return {key: figures[key] for key in keys}
