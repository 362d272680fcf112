"""What the statistics say of recorded anomalies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from supervisor.records import NAN
from supervisor.report.facts.crash_report import AnomalyVerdict
from supervisor.report.facts.figures import integer, number, show
from supervisor.report.facts.run_data import RunData

SHOWN = 12
JUMP = 0.5
FIGURES = ("median", "mad", "threshold", "mean", "std", "relative_change")
HEAVY_TAIL = 1.5  # mean over median above which outliers are taken to have distorted it


def build_anomalies(run_data: RunData) -> tuple[AnomalyVerdict, ...]:
    """Returns the first and the worst anomalies, at most `SHOWN`, in the order of steps."""
    lines = list(run_data.anomalies)
    if len(lines) > SHOWN:
        worst = sorted(lines[1:], key=_badness, reverse=True)[: SHOWN - 1]
        lines = sorted([lines[0], *worst], key=lambda line: integer(line.get("step")) or 0)
    return tuple(_verdict(line) for line in lines)


def _badness(line: dict[str, Any]) -> float:
    value = _value(line, "loss")
    return value if math.isfinite(value) else math.inf


def _verdict(line: dict[str, Any]) -> AnomalyVerdict:
    said = [text for name in ("loss", "grad_norm") if (text := _judge(line, name))]
    return AnomalyVerdict(
        step=integer(line.get("step")),
        rank=integer(line.get("rank")),
        loss=_value(line, "loss"),
        grad_norm=_value(line, "grad_norm"),
        verdict=" ".join(said) or "No threshold was recorded.",
        batch=_batch(line.get("batch_info")),
        data_dir=str(line.get("data_dir") or ""),
    )


def _judge(line: dict[str, Any], name: str) -> str:
    """Says whether the level, the change or both were anomalous, and whether a mean would have
    shown it."""
    word = "The loss" if name == "loss" else "The gradient norm"
    info = _statistics(line.get("threshold_info"), name)
    value = _value(line, name)
    if line.get(name) is not None and not math.isfinite(value):
        return f"{word} was not finite."
    threshold, median, mean = (info.get(key, NAN) for key in ("threshold", "median", "mean"))
    change = info.get("relative_change", NAN)
    is_high, is_jump = value > threshold, change > JUMP
    if not is_high and not is_jump:
        return ""
    parts = []
    if is_high:
        parts.append(
            f"{word} was {show(value)}, above its threshold of {show(threshold)}"
            f" (median {show(median)}): an unusually high level"
        )
    if is_jump:
        joint = "a jump," if is_high else f"{word} jumped: {show(value)} is"
        parts.append(f"{joint} {show(100 * change, 3)} % above the step before")
    text = " and ".join(parts) + ("." if is_high else ", though below its threshold.")
    if median > 0 and mean > HEAVY_TAIL * median:
        text += (
            f" The mean ({show(mean)}) is far above the median: earlier outliers pulled it up, so"
            " a threshold of mean and deviation would have missed this."
        )
    return text


def _statistics(info: Any, name: str) -> dict[str, float]:
    """Finds what was recorded about the loss or the gradient norm.

    It lies under the value's own name, or under the kind of the alert (``grad_jump``), whose
    threshold then is the line for a jump, not for the level.
    """
    if not isinstance(info, Mapping):
        return {}
    found: dict[str, float] = {}
    for kind, figures in info.items():
        if not isinstance(figures, Mapping) or not str(kind).startswith(name.split("_")[0]):
            continue
        for key in FIGURES:
            if figures.get(key) is not None and not (key == "threshold" and "jump" in str(kind)):
                found[key] = number(figures[key])
    return found


def _value(line: dict[str, Any], name: str) -> float:
    return number(line.get(name))


def _batch(info: Any) -> str:
    """Returns ``tokens 8×128, labels 8×128`` of what is known about the batch's tensors."""
    items: list[tuple[str, Any]] = []
    if isinstance(info, Mapping):
        items = [(str(name), value) for name, value in info.items()]
    elif isinstance(info, (list, tuple)):
        items = [
            (str(value.get("name") or value.get("path") or index), value)
            for index, value in enumerate(info)
            if isinstance(value, Mapping)
        ]
    shapes = []
    for name, value in items:
        shape = value.get("shape") if isinstance(value, Mapping) else None
        if isinstance(shape, (list, tuple)):
            shapes.append(f"{name} {'×'.join(str(size) for size in shape) or 'scalar'}")
    return ", ".join(shapes)
