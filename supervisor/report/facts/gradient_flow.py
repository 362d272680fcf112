"""Gradients and values of the layers when something was wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.report.facts.figures import integer
from supervisor.storage.files.line_file import parse_json

COLUMNS = ("name", "norm", "mean", "max", "min", "zero_share", "nonfinite")
TENSOR_COLUMNS = ("name", "kind", "problem", "nan_count", "inf_count", "huge_count", "max_abs")
MAX_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """What ``gradient_flow.json`` holds; nothing by default.

    Attributes:
        step: at which it was measured; None if that was not written down.
        moment: ``anomaly`` or ``end``; empty if that was not written down.
        layers: one object a layer, with `COLUMNS`.
        unhealthy: one object a tensor that holds NaN, infinities or huge values, with
            `TENSOR_COLUMNS`.
    """

    step: int | None = None
    moment: str = ""
    layers: tuple[dict[str, Any], ...] = ()
    unhealthy: tuple[dict[str, Any], ...] = ()


def read_gradient_flow(root: Path) -> LayerFacts:
    """Reads the newest ``gradient_flow.json`` below `root`.

    It lies in ``report/`` or beside captured batches. A missing or damaged file gives no rows, and
    a bare list counts as its ``layers``.
    """
    places = [root / "report" / "gradient_flow.json"]
    captured = (root / "anomalies" / "data").glob("*/gradient_flow.json")
    places += sorted(captured, key=_captured_at, reverse=True)
    for place in places:
        try:
            value = parse_json(place.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        document = value if isinstance(value, dict) else {"layers": value}
        layers = _rows(document.get("layers"), COLUMNS)
        unhealthy = _rows(document.get("unhealthy"), TENSOR_COLUMNS)
        if layers or unhealthy:
            return LayerFacts(
                step=integer(document.get("step")),
                moment=str(document.get("moment") or ""),
                layers=layers,
                unhealthy=unhealthy,
            )
    return LayerFacts()


def _captured_at(path: Path) -> str:
    """The time at the end of ``step_60_rank_0_20260131T031207_123456``."""
    return path.parent.name.partition("_rank_")[2].partition("_")[2]


def _rows(value: Any, columns: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list):
        return ()
    rows = [row for row in value if isinstance(row, dict)]
    return tuple({name: row.get(name) for name in columns} for row in rows[:MAX_ROWS])
