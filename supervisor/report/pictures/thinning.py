"""Thins out points so that the picture looks the same."""

from __future__ import annotations

import numpy as np

from supervisor.report.facts.step_table import Floats

BUCKETS = 900
"""Twice as many points as this are drawn: a picture is about 900 pixels wide."""


def thin(x: Floats, y: Floats, buckets: int = BUCKETS) -> tuple[Floats, Floats]:
    """Keeps the smallest and the largest finite value of each bucket, so that spikes stay."""
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if len(y) <= 2 * buckets:
        return x, y
    keep: set[int] = {0, len(y) - 1}
    for part in np.array_split(np.arange(len(y)), buckets):
        keep.add(int(part[np.argmin(y[part])]))
        keep.add(int(part[np.argmax(y[part])]))
    chosen = np.array(sorted(keep))
    return x[chosen], y[chosen]


def thin_marks(x: Floats, buckets: int = BUCKETS) -> Floats:
    """Keeps one of the marks that would cover each other: the first of each bucket of `x`."""
    if len(x) <= buckets:
        return x
    low, high = float(x.min()), float(x.max())
    places = ((x - low) / ((high - low) or 1.0) * (buckets - 1)).astype(np.int64)
    _, first = np.unique(places, return_index=True)
    chosen: Floats = x[first]
    return chosen
