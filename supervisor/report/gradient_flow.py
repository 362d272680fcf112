"""Gradient flow per layer, when somebody measured it (REQUIREMENTS K5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLUMNS = ("name", "norm", "mean", "max", "min", "zero_share")
MAX_ROWS = 200


def read_gradient_flow(root: Path) -> tuple[dict[str, Any], ...]:
    """Reads the newest ``gradient_flow.json`` below `root`: a list of one object per layer.

    Looked for in ``report/`` and beside captured batches; nothing, or a damaged one, is no rows.
    """
    places = [root / "report" / "gradient_flow.json"]
    places += sorted((root / "anomalies" / "data").glob("*/gradient_flow.json"), reverse=True)
    for place in places:
        try:
            value = json.loads(place.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        rows = value.get("layers") if isinstance(value, dict) else value
        if isinstance(rows, list):
            kept = [
                {name: row.get(name) for name in COLUMNS} for row in rows if isinstance(row, dict)
            ]
            return tuple(kept[:MAX_ROWS])
    return ()
