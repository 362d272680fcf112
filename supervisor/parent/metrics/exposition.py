"""Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: labels → value, for each of its series.

    Attributes:
        kind: ``gauge`` or ``counter``.
        samples: none: the metric is left out.
    """

    name: str
    kind: str
    meaning: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def render(metrics: Iterable[Metric]) -> str:
    """Returns the document that a scrape gets."""
    lines: list[str] = []
    for metric in metrics:
        if not metric.samples:
            continue
        lines.append(f"# HELP {metric.name} {_escape(metric.meaning)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.samples:
            text = ",".join(
                f'{name}="{_escape(told, quote=True)}"' for name, told in labels.items()
            )
            lines.append(f"{metric.name}{{{text}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escape(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quote else escaped


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
