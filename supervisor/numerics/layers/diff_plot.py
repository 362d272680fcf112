"""The picture of a layer-by-layer comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from supervisor.numerics.figures.level import SEVERE_ABOVE, WARNING_ABOVE, Level
from supervisor.numerics.figures.picture import picture_bytes, write_picture
from supervisor.numerics.layers.layer_error import LayerError

COLOURS = {Level.OK: "#2c8a5c", Level.WARNING: "#c06a10", Level.SEVERE: "#c8393b"}
FLOOR = 1e-6
"""Errors below this stand at the lower edge of the logarithmic axis."""
CEILING = 10.0
"""Infinite errors stand at the upper one."""


def plot_diff(layers: Sequence[LayerError], dtype: str, path: Path) -> Path:
    """Draws the relative error of each layer in forward order, with the two lines.

    Args:
        layers: in forward order.
        dtype: of the low precision, for the title.
        path: its ending chooses png, svg or pdf.

    Raises:
        UsageError: the ending of `path` is unknown or the place cannot be written.
    """
    from matplotlib.figure import Figure

    height = max(3.0, 0.22 * len(layers) + 1.5)
    picture = Figure(figsize=(8, min(height, 60)), layout="constrained")
    axes = picture.add_subplot()
    places = range(len(layers))
    errors = [_on_axis(layer.relative_error) for layer in layers]
    axes.barh(places, errors, color=[COLOURS[layer.level] for layer in layers])
    own = [
        _on_axis(layer.own_error) if not math.isnan(layer.own_error) else math.nan
        for layer in layers
    ]
    axes.plot(own, places, "|", color="#1f2430", markersize=9, label="of the layer alone")
    axes.axvline(WARNING_ABOVE, color=COLOURS[Level.WARNING], linestyle="--", linewidth=1)
    axes.axvline(SEVERE_ABOVE, color=COLOURS[Level.SEVERE], linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(FLOOR, CEILING)
    axes.set_yticks(list(places), [layer.name for layer in layers], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("relative error (lines: 1 % and 10 %)")
    axes.set_title(f"FP32 against {dtype.upper()}, in forward order")
    axes.legend(loc="lower right", fontsize=7)
    return write_picture(path, picture_bytes(picture, path))


def _on_axis(error: float) -> float:
    return CEILING if not math.isfinite(error) else min(max(error, FLOOR), CEILING)
