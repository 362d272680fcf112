"""Healthy rows against fatal events, at other lines: docs/images/thresholds.png.

    python -m benchmarks.scorecard.thresholds LOGS [--picture FILE] [--json FILE]

LOGS is a folder of public logs with an INDEX.md, of which only those marked `tune` are read. Three
lines are moved, one at a time: the policy's alarm line, on which the shipped policies are named;
the leap of a loss that is an alarm by itself; and how far above the highest of the untrained
network's losses and norms ruin begins, without which an alarm is not treated. About two minutes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.scorecard.alarms import raised
from benchmarks.scorecard.judged_course import Course, judge, tuning_logs, worth_of_ladder
from supervisor.config import available_policies, load_policy
from supervisor.detectors.statistics import run_scale
from supervisor.pipeline import Judgement
from supervisor.prediction import predictor
from supervisor.report.facts.figures import GRID, INK, MUTED, RISK
from supervisor.settings import PolicySettings

ALARM_LINES = (0.2, 0.3, 0.35, 0.4, 0.5, 0.55, 0.58, 0.6, 0.65, 0.7, 0.8, 0.9)
LEAPS = (1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
RUIN = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 20.0)


@dataclass(frozen=True)
class Point:
    """What a line gives.

    Attributes:
        false_per_10k: alarms, or treatments, in 10,000 healthy rows.
        met: fatal events with an alarm from their onset to before their peak, or treated until five
            rows after it.
    """

    line: float
    false_per_10k: float
    met: int


Judged = Sequence[tuple[Course, Sequence[Judgement]]]


def alarm_point(line: float, judged: Judged) -> Point:
    false = met = 0
    for course, judgements in judged:
        alarm = np.array([j.risk.probability for j in judgements]) >= line
        false += int(course.healthy[raised(alarm)].sum())
        met += sum(bool(alarm[first:peak].any()) for first, peak in course.crashes)
    return Point(line, _per_10k(false, judged), met)


def leap_point(factor: float, judged: Judged) -> Point:
    with patch.object(predictor, "LEFT_COURSE", math.log(factor)):
        again = [(course, judge(course)) for course, _ in judged]
    point = alarm_point(load_policy().alarm_threshold, again)
    return Point(factor, point.false_per_10k, point.met)


def ruin_point(share: float, judged: Judged) -> Point:
    """At 0 each alarm is treated."""
    off = "" if share else "ruin_first"
    with patch.object(run_scale, "BEYOND", share):
        found = [worth_of_ladder(course, judgements, off) for course, judgements in judged]
    false = sum(one.treatments for one in found)
    return Point(share, _per_10k(false, judged), sum(one.treated for one in found))


def _per_10k(count: int, judged: Judged) -> float:
    return 1e4 * count / max(1, sum(int(course.healthy.sum()) for course, _ in judged))


def presets(value: Callable[[PolicySettings], float]) -> dict[float, str]:
    """The line of each shipped policy → its name, or several."""
    found: dict[float, list[str]] = {}
    for shipped in available_policies():
        if shipped.name != "observe_only":
            found.setdefault(value(load_policy(shipped.name)), []).append(shipped.name)
    return {line: ", ".join(names) for line, names in sorted(found.items())}


@dataclass(frozen=True)
class Sweep:
    """A line at several places.

    Attributes:
        names: at which of them something stands → its name.
        crashes: fatal events in all.
    """

    title: str
    acts: str
    names: dict[float, str]
    crashes: int
    points: tuple[Point, ...]


def sweeps(judged: Judged) -> tuple[Sweep, ...]:
    alarms = presets(lambda policy: policy.alarm_threshold)
    leap = round(math.exp(predictor.LEFT_COURSE), 6)
    crashes = sum(len(course.crashes) for course, _ in judged)

    def sweep(
        title: str,
        acts: str,
        names: dict[float, str],
        lines: Sequence[float],
        point: Callable[[float, Judged], Point],
    ) -> Sweep:
        at = sorted({*lines, *names})
        return Sweep(title, acts, names, crashes, tuple(point(line, judged) for line in at))

    return (
        sweep("alarm line", "alarms", alarms, ALARM_LINES, alarm_point),
        sweep("leap of a loss", "alarms", {leap: "in force"}, LEAPS, leap_point),
        sweep("ruin", "treatments", {run_scale.BEYOND: "in force"}, RUIN, ruin_point),
    )


def draw(found: Sequence[Sweep], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, sweep in zip(figure.subplots(1, len(found)), found, strict=True):
        _draw_sweep(axes, sweep)
    figure.savefig(path, dpi=110)


def _draw_sweep(axes: Any, sweep: Sweep) -> None:
    """The lines stand side by side, whatever lies between them."""
    places = range(len(sweep.points))
    axes.plot(places, [p.met for p in sweep.points], "o-", color=RISK, label="fatal events met")
    false = axes.twinx()
    false.plot(places, [p.false_per_10k for p in sweep.points], "s--", color=MUTED, markersize=4)
    false.set_ylim(bottom=-0.02, top=max(1.0, 1.1 * max(p.false_per_10k for p in sweep.points)))
    false.set_ylabel(f"{sweep.acts} in 10,000 healthy rows (squares)", color=MUTED)
    for place, point in zip(places, sweep.points, strict=True):
        if point.line in sweep.names:
            axes.axvline(place, color=GRID, linewidth=6, zorder=0)
            name = sweep.names[point.line]
            axes.text(place, 0.3, name, rotation=90, ha="center", va="bottom", color=INK)
    axes.set_xticks(list(places), [f"{p.line:g}" for p in sweep.points], rotation=45)
    axes.set_ylim(0, sweep.crashes + 0.5)
    axes.set_ylabel(f"fatal events met, of {sweep.crashes} (dots)", color=RISK)
    axes.set_title(sweep.title, color=INK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    judged = [(course, judge(course)) for course in tuning_logs(arguments.logs)]
    found = sweeps(judged)
    for sweep in found:
        print(f"\n| {sweep.title} | {sweep.acts} in 10,000 | met of {sweep.crashes} | |")
        print("| --- | --- | --- | --- |")
        for point in sweep.points:
            name = sweep.names.get(point.line, "")
            print(f"| {point.line:g} | {point.false_per_10k:.2f} | {point.met} | {name} |")
    if arguments.picture:
        draw(found, arguments.picture)
    if arguments.json:
        document = {
            sweep.title: [[p.line, p.false_per_10k, p.met] for p in sweep.points] for sweep in found
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
