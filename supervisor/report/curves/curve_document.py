"""The curves of one run or two, as the JSON that `static/curves.js` draws.

uPlot 1.6.32 (MIT, static/uPlot.LICENSE) is shipped with us.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.codes import ExitCause
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import HangDetected, WorkerExited
from supervisor.events.step_events import AlertEvent, CorruptionFound
from supervisor.report.curves.curves import APPLIED_RATE, MEASURED, Curve, Curves
from supervisor.report.facts.figures import number
from supervisor.report.facts.step_table import Floats, thin_marks
from supervisor.report.facts.timeline import describe
from supervisor.risk_lines import RiskLines
from supervisor.storage.journal.events import JournalTreatments

TITLES = {
    "loss": "Loss",
    "grad_norm": "Gradient norm",
    "risk": "Crash risk",
    "lr": "Learning rate",
    "loss_scale": "Loss scale",
    "step_time_s": "Step time (s)",
    "memory_gib": "Memory (GiB)",
}
SHOWN = ("loss", "grad_norm", "risk", "lr", APPLIED_RATE)
"""Curves of the panels that are open at first; the reader chooses others."""
LOGARITHMIC_FROM = 1000.0
"""Largest by smallest value from which a panel is logarithmic at first."""
FIGURES = 7
"""Significant figures: more are no longer seen, and pages with few digits are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRun:
    """A run whose curves are drawn.

    Attributes:
        name: as the reader knows it.
        curves: what is drawn.
        events: of its journal.
        lines: of its policy.
    """

    name: str
    curves: Curves
    events: Sequence[JournalEvent]
    lines: RiskLines


def curve_document(runs: Sequence[DrawnRun]) -> dict[str, Any]:
    """Returns strict JSON data: panels, curves of each run, marks; of one run, or of two that are
    compared."""
    read = [run.curves for run in runs]
    every = list(dict.fromkeys(name for curves in read for name in curves.names))
    firsts = [curves.first_step for curves in read if curves.first_step is not None]
    lasts = [curves.last_step for curves in read if curves.last_step is not None]
    return {
        "runs": [run.name for run in runs],
        "steps": [min(firsts), max(lasts)] if firsts else None,
        "panels": [
            _panel(name, read, runs[0].lines)
            for name in every
            if name != APPLIED_RATE or "lr" not in every
        ],
        "curves": {
            name: [_points(curves.by_name.get(name)) for curves in read]
            for name in every
            if any(name in curves.by_name for curves in read)
        },
        "marks": [
            {**mark, "run": place} for place, run in enumerate(runs) for mark in marks(run.events)
        ],
    }


def layer_document(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what `curve_document` does, of the gradient of each layer in place of steps."""
    figures = {name: [number(layer[name]) for layer in layers] for name in ("norm", "max", "mean")}
    bad = [
        place
        for place, layer in enumerate(layers)
        if number(layer["nonfinite"]) > 0 or not math.isfinite(figures["norm"][place])
    ]
    return {
        "runs": [""],
        "steps": [0, len(layers) - 1],
        "panels": [
            {
                "name": "layers",
                "title": "Gradient of each layer, input to output, absolute",
                "curves": [f"layer_{name}" for name in figures],
                "names": [str(layer["name"]) for layer in layers],
                "shown": True,
                "log": True,
            }
        ],
        "curves": {
            f"layer_{name}": [
                {
                    "x": list(range(len(layers))),
                    "y": [value if math.isfinite(value) else None for value in values],
                    "bad": bad,
                }
            ]
            for name, values in figures.items()
        },
        "marks": [],
    }


def marks(events: Sequence[JournalEvent]) -> list[dict[str, Any]]:
    """Returns what is marked on the step axis: group, tone, step and sentence, by group."""
    groups: dict[str, dict[int, JournalEvent]] = {}

    def add(group: str, step: int | None, event: JournalEvent) -> None:
        if step is not None:
            groups.setdefault(group, {})[step] = event

    for name, event in JournalTreatments().pick(events):
        add("rollback" if name == "rollback" else "treatment", event.step, event)
    for event in events:
        match event:
            case AlertEvent():
                add("alert", event.step, event)
            case HangDetected():
                add("hang", event.step, event)
            case CorruptionFound():
                add("corruption", event.step, event)
            case WorkerExited(cause=cause) if cause is not ExitCause.COMPLETED:
                add("exit", event.last_step, event)
    found = []
    for group, by_step in groups.items():
        for step in thin_marks(np.array(sorted(by_step), np.float64)).tolist():
            tone, text = describe(by_step[int(step)])
            found.append({"group": group, "tone": tone, "step": int(step), "text": text})
    return found


def _panel(name: str, read: Sequence[Curves], lines: RiskLines) -> dict[str, Any]:
    values = [curves.by_name[name].values for curves in read if name in curves.by_name] or [
        np.zeros(0)
    ]
    panel: dict[str, Any] = {
        "name": name,
        "title": TITLES.get(name, name),
        "curves": ["lr", APPLIED_RATE] if name == "lr" else [name],
        "shown": name in SHOWN,
        "own": name not in MEASURED,
        "log": name != "risk" and _is_wide(np.concatenate(values)),
    }
    if name == "risk":
        panel["limits"] = [0.0, 1.0]
        panel["lines"] = [
            {"value": lines.warn, "text": "warning"},
            {"value": lines.alarm, "text": "alarm"},
        ]
    return panel


def _is_wide(values: Floats) -> bool:
    if not len(values) or values.min() <= 0.0:
        return False
    return bool(values.max() / values.min() > LOGARITHMIC_FROM)


def _points(curve: Curve | None) -> dict[str, list[float]]:
    if curve is None:
        return {"x": [], "y": [], "bad": []}
    return {
        "x": [int(step) for step in curve.steps.tolist()],
        "y": [float(f"{value:.{FIGURES}g}") for value in curve.values.tolist()],
        "bad": [int(step) for step in curve.nonfinite.tolist()],
    }


STATIC = Path(__file__).with_name("static")


@cache
def curves_script() -> str:
    """Returns uPlot and `Curves`, which draws a document (`curve_document`) with it."""
    return _read("uPlot.iife.min.js") + "\n" + _read("curves.js")


@cache
def curves_css() -> str:
    return _read("uPlot.min.css") + "\n" + _read("curves.css")


def as_script_data(document: dict[str, Any]) -> str:
    """Returns JSON that can stand within a script element: nothing in it can close the element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
