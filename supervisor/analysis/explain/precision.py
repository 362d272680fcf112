"""What `explain` prints about the precision in use. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.numerics.figures.readable import figure, percent
from supervisor.table import table

MOST_LINES = 12


def precision_lines(seen: Mapping[str, Any]) -> list[str]:
    """Returns a table of the layers with the largest errors, in forward order, and the overflow.

    Args:
        seen: `PrecisionView.to_dict`.
    """
    layers = seen["layers"]
    worst = sorted(layers, key=lambda layer: -layer["relative_error"])[:MOST_LINES]
    rows = [
        (layer["name"], layer["type"], percent(layer["relative_error"]),
         percent(layer["own_error"]), layer["level"])
        for layer in layers
        if layer in worst
    ]  # fmt: skip
    how = "under autocast" if seen["autocast"] else "with weights in it"
    lines = [
        f"FP32 against {seen['dtype'].upper()} {how}, at this state and batch",
        table(("layer", "type", "error", "own", "level"), rows),
    ]
    if len(layers) > len(rows):
        lines.append(f"{len(layers) - len(rows)} layers with smaller errors are in --json")
    overflow = seen["overflow"]
    if overflow:
        share, largest = percent(overflow["saturated_share"]), figure(overflow["largest"])
        name = overflow["dtype"].upper()
        lines.append(
            f"overflow: {overflow['name']}: up to {largest}, {share} of it too large for {name}"
        )
        lines += [f"- {advice}" for advice in overflow["advice"]]
    return lines
