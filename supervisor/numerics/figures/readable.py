"""Numbers formatted for people."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """Returns ``0.31 %``, ``12 %``, ``0 %``, ``< 0.01 %``, ``infinite``, or ``–`` for NaN."""
    if math.isnan(share):
        return "–"
    if math.isinf(share):
        return "infinite"
    if 0 < share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def figure(value: float) -> str:
    """Returns four digits: ``3.142``, ``1.2e+07``."""
    return f"{value:.4g}"
