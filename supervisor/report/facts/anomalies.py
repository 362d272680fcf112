"""Anomalous steps, the shape of a loss explosion, and the layers at that moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.records import NAN
from supervisor.report.facts.crash_report import AnomalyVerdict, Explosion
from supervisor.report.facts.figures import integer, number, show
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import Floats, StepTable
from supervisor.storage.files.json_files import parse_json

SHOWN = 12
JUMP = 0.5
FIGURES = ("median", "threshold", "mean", "relative_change")
HEAVY_TAIL = 1.5  # mean over median above which outliers are taken to have distorted it


def build_anomalies(run_data: RunData) -> tuple[AnomalyVerdict, ...]:
    """Returns the first and the worst anomalies, at most `SHOWN`, in the order of steps."""
    lines = list(run_data.anomalies)
    if len(lines) > SHOWN:
        worst = sorted(lines[1:], key=_badness, reverse=True)[: SHOWN - 1]
        lines = sorted([lines[0], *worst], key=lambda line: integer(line.get("step")) or 0)
    return tuple(_verdict(line) for line in lines)


def _badness(line: dict[str, Any]) -> float:
    value = number(line.get("loss"))
    return value if math.isfinite(value) else math.inf


def _verdict(line: dict[str, Any]) -> AnomalyVerdict:
    said = [text for name in ("loss", "grad_norm") if (text := _judge(line, name))]
    return AnomalyVerdict(
        step=integer(line.get("step")),
        rank=integer(line.get("rank")),
        loss=number(line.get("loss")),
        grad_norm=number(line.get("grad_norm")),
        verdict=" ".join(said) or "No threshold was recorded.",
        batch=_batch(line.get("batch_info")),
        data_dir=str(line.get("data_dir") or ""),
    )


def _judge(line: dict[str, Any], name: str) -> str:
    """Says whether the level, the change or both were anomalous, and whether a mean would have
    shown it."""
    word = "The loss" if name == "loss" else "The gradient norm"
    info = _statistics(line.get("threshold_info"), name)
    value = number(line.get(name))
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
    """Returns what was recorded about the loss or the gradient norm."""
    figures = info.get(name) if isinstance(info, Mapping) else None
    if not isinstance(figures, Mapping):
        return {}
    return {key: number(figures.get(key)) for key in FIGURES}


def _batch(info: Any) -> str:
    """Returns ``tokens 8×128, labels 8×128`` of what is known about the batch's tensors."""
    shapes = []
    for name, value in info.items() if isinstance(info, Mapping) else ():
        shape = value.get("shape") if isinstance(value, Mapping) else None
        if isinstance(shape, (list, tuple)):
            shapes.append(f"{name} {'×'.join(str(size) for size in shape) or 'scalar'}")
    return ", ".join(shapes)


BASELINE_STEPS = 50
LOOK_BACK_STEPS = 300
LEVEL_STEPS = 20  # the level that a falling loss had reached when it broke out
MIN_BASELINE_STEPS = 5
SUDDEN_STEPS = 2
MIN_SHARE = 0.5  # how far the peak must lie above the baseline, as a share of it
MIN_MADS = 8.0
MOST = 0.5  # share of the peak's excess: reached at once, it was no climb
REVERSAL_SHARE = 0.3
REVERSAL_SIZE = 0.15  # share of the excess: smaller swings are noise, not oscillation

RATE_TOO_HIGH = "the learning rate is too high for this phase of the training"
CAUSES = {
    "sudden_jump": (
        "one bad batch: corrupted, mislabelled or empty samples",
        "an overflow of half precision in a single forward or backward",
        "division by zero, or the logarithm of zero, in the loss",
    ),
    "exponential_growth": (
        RATE_TOO_HIGH,
        "gradients accumulate: zero_grad() is missing, or accumulation is not averaged",
        "clipping is missing or comes after the optimizer's step",
    ),
    "oscillating_divergence": (
        "the optimizer's state is stale: second moments too small for the gradients that came",
        "momentum is too high for the learning rate",
        "a schedule or a batch size that alternates",
    ),
}
PROVED = {
    **dict.fromkeys(("skip_update", "skip_data"), "batches that came at this place"),
    **dict.fromkeys(("fp32_fallback", "fp32_modules"), "half precision was too narrow"),
    **dict.fromkeys(("repair_optimizer", "reset_optimizer"), "the optimizer's state"),
    **dict.fromkeys(("cut_lr", "limit_lr"), RATE_TOO_HIGH),
}
"""What the cause was where this treatment alone has helped."""


def find_explosion(steps: StepTable, *, until: int | None = None) -> Explosion | None:
    """Names the shape of the last loss explosion at or before step `until`; None without one.

    Onset is the first step of the last unbroken climb out of the band median +- 8 MAD of the
    steps before. A climb that is half-way up within two steps is sudden. Of the longer ones, those
    with many large reversals are oscillations; the rest is growth.
    """
    window = steps.until(until).take(slice(-LOOK_BACK_STEPS, None))
    bad = window.nonfinite_loss
    seen = np.isfinite(window.loss) | bad
    window, bad = window.take(seen), bad[seen]
    if len(window) < MIN_BASELINE_STEPS + 1:
        return None
    loss = np.where(bad, np.inf, window.loss)
    peak = int(np.argmax(bad)) if bad.any() else int(np.argmax(loss))
    onset, baseline = _onset(loss, peak)
    if onset is None:
        return None
    recent = loss[:onset][np.isfinite(loss[:onset])][-LEVEL_STEPS:]
    baseline = float(np.median(recent)) if len(recent) else baseline
    shape = _shape(loss[onset : peak + 1] - baseline)
    factor = float(loss[peak] / baseline) if baseline > 0 else math.inf
    return Explosion(
        shape=shape,
        onset_step=int(window.step[onset]),
        peak_step=int(window.step[peak]),
        factor=factor,
        sentence=_sentence(shape, window, loss, onset, peak, baseline),
        likely_causes=CAUSES[shape],
    )


def _onset(loss: Floats, peak: int) -> tuple[int | None, float]:
    """Returns the index where the climb to `peak` begins, and the level before it."""
    before = loss[:peak]
    calm = before[np.isfinite(before)]
    if len(calm) < MIN_BASELINE_STEPS:
        return None, 0.0
    # The older half cannot be part of a climb that ends at the peak and still
    # be the majority: the median over the older steps is the level before the climb.
    older = calm[-2 * BASELINE_STEPS :][: max(MIN_BASELINE_STEPS, min(len(calm), 100) // 2)]
    baseline = float(np.median(older))
    mad = 1.4826 * float(np.median(np.abs(older - baseline)))
    line = baseline + max(MIN_MADS * mad, MIN_SHARE * abs(baseline), 1e-12)
    if not loss[peak] > line:
        return None, baseline
    onset = peak
    # Out of the band, with gaps of up to three steps in it: an oscillation dips back now and then.
    gap = 0
    for index in range(peak - 1, -1, -1):
        if loss[index] > baseline + 0.5 * (line - baseline):
            onset, gap = index, 0
        else:
            gap += 1
            if gap > 3:
                break
    return onset, baseline


def _shape(excess: Floats) -> str:
    finite = excess[np.isfinite(excess)]
    if len(finite) <= SUDDEN_STEPS:
        return "sudden_jump"
    changes = np.diff(finite)
    size = np.maximum(np.abs(finite[1:]), np.abs(finite[:-1]))
    large = np.sign(changes) * (np.abs(changes) > REVERSAL_SIZE * size)
    moves = large[large != 0]
    reversals = int(np.sum(moves[1:] != moves[:-1]))
    if len(finite) >= 5 and reversals >= max(2, REVERSAL_SHARE * len(changes)):
        return "oscillating_divergence"
    if len(finite) == len(excess) and (finite[:SUDDEN_STEPS] >= MOST * finite[-1]).any():
        return "sudden_jump"  # it was that high from the first steps on, and only varies
    return "exponential_growth"


def _sentence(
    shape: str, window: StepTable, loss: Floats, onset: int, peak: int, baseline: float
) -> str:
    first, last = int(window.step[onset]), int(window.step[peak])
    top = "a non-finite value" if not math.isfinite(loss[peak]) else show(float(loss[peak]))
    if shape == "sudden_jump":
        return (
            f"Sudden jump: the loss left its level of about {show(baseline)} at step {first} "
            f"and was {top} at step {last}, without a climb before it."
        )
    climb = loss[onset : peak + 1] - baseline
    climb = climb[np.isfinite(climb) & (climb > 0)]
    if shape == "oscillating_divergence":
        return (
            f"Oscillating divergence: from step {first} to step {last} the loss swung up and down "
            f"with growing size, from a level of {show(baseline)} to {top}."
        )
    rate = float(np.polyfit(np.arange(len(climb)), np.log(climb), 1)[0]) if len(climb) > 2 else 0.0
    pace = f", doubling about every {show(math.log(2) / rate, 2)} steps" if rate > 0.01 else ""
    return (
        f"Exponential growth: the loss climbed from a level of {show(baseline)} at step {first} "
        f"to {top} at step {last}{pace}."
    )


COLUMNS = ("name", "norm", "mean", "max", "min", "zero_share", "nonfinite")
TENSOR_COLUMNS = ("name", "kind", "problem", "nan_count", "inf_count", "huge_count", "max_abs")
MAX_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """What ``gradient_flow.json`` holds; nothing by default.

    Attributes:
        step: at which it was measured; None if that was not written down.
        layers: one object a layer, with `COLUMNS`.
        unhealthy: one object a tensor that holds NaN, infinities or huge values, with
            `TENSOR_COLUMNS`.
    """

    step: int | None = None
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
