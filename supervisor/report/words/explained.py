"""The document of `supervisor explain` as the page shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.report.facts.figures import number

MOST_LAYERS = 12


def explained(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns explain.json with all the fields that the templates read, whatever it holds."""
    if not found:
        return None
    replays = found.get("replays")
    replays = replays if isinstance(replays, list) else []
    fields = ("summary", "root_cause", "confidence", "sample", "module", "operation")
    return {
        **{name: found.get(name) for name in fields},
        "replays": [
            {name: row.get(name) for name in ("change", "crashed", "at_step")}
            for row in replays
            if isinstance(row, dict)
        ],
        "precision": _precision(found.get("precision")),
    }


def _precision(found: Any) -> dict[str, Any] | None:
    """Returns the layers that the precision in use changes most, and what overflows."""
    if not isinstance(found, dict) or not isinstance(found.get("layers"), list):
        return None
    layers = [layer for layer in found["layers"] if isinstance(layer, dict)]
    worst = sorted(layers, key=lambda layer: -number(layer.get("relative_error")))[:MOST_LAYERS]
    overflow = found.get("overflow")
    overflow = overflow if isinstance(overflow, dict) else {}
    return {
        "dtype": str(found.get("dtype", "")).upper(),
        "left_out": len(layers) - len(worst),
        "layers": [
            {name: layer.get(name) for name in ("name", "type", "relative_error", "own_error")}
            for layer in layers
            if layer in worst
        ],
        "overflow": {
            name: overflow.get(name)
            for name in ("module", "operation", "largest", "saturated_share")
        }
        if overflow
        else None,
    }
