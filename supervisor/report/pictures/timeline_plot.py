"""The last minutes of a run as one picture: attempts, steps, alerts, treatments, exits, risk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from supervisor.events.event import JournalEvent
from supervisor.events.run_events import HangDetected
from supervisor.events.state_events import CheckpointRejected, CheckpointSaved
from supervisor.events.step_events import ActionEvent, AlertEvent, RollbackEvent, UpdateSkipped
from supervisor.report.facts import palette
from supervisor.report.facts.attempts import first_exit
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.figures import moment
from supervisor.report.facts.run_data import RunData
from supervisor.report.pictures.thinning import thin

LANES = (
    ("alerts", palette.RISK, "v", (AlertEvent, HangDetected, CheckpointRejected)),
    ("left out", palette.RISK, "x", (UpdateSkipped,)),
    ("treatments", palette.TREATMENT, "D", (ActionEvent,)),
    ("rollbacks", palette.ROLLBACK, "<", (RollbackEvent,)),
    ("checkpoints", palette.GOOD, "o", (CheckpointSaved,)),
)
MAX_TICKS = 600
CALM_RISK = 0.1
"""In a healthy run a risk that was never higher is not worth a panel."""


def draw_timeline(figure: Any, run_data: RunData, report: CrashReport, *, minutes: float) -> bool:
    """Draws into `figure`; returns False when there is nothing to draw."""
    begin, end = _span(run_data)
    if not math.isfinite(begin) or end <= begin:
        return False
    begin = max(begin, end - 60.0 * minutes)
    unit = 60.0 if end - begin > 180.0 else 1.0
    rows = run_data.steps.take(run_data.steps.time >= begin)
    lanes = [lane for lane in LANES if _times(run_data, lane[3], begin)]
    risks = rows.risk[np.isfinite(rows.risk)]
    is_healthy = report.root_cause == "none"
    has_risk = bool(len(risks)) and not (is_healthy and risks.max() < CALM_RISK)
    lane_height = 0.34 * (len(lanes) + 2) + 0.7
    figure.set_size_inches(9.6, lane_height + (1.5 if has_risk else 0.0))
    if has_risk:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, lane_height])
        for number in np.unique(rows.attempt):
            one = rows.of_attempt(int(number))
            upper.plot(*thin((one.time - end) / unit, one.risk), color=palette.RISK, linewidth=1.3)
        upper.set_ylim(-0.04, 1.04)
        upper.set_title("Crash risk")
    else:
        lower = figure.subplots()
    names = ["attempts", "steps", *[lane[0] for lane in lanes]]
    _draw_attempts(lower, run_data, report, begin, end, unit)
    _draw_steps(lower, rows.time, end, unit)
    for index, (_, colour, marker, kinds) in enumerate(lanes, start=2):
        times = (np.array(_times(run_data, kinds, begin)) - end) / unit
        lower.plot(
            times,
            np.full(len(times), -index),
            linestyle="none",
            marker=marker,
            markersize=6,
            markeredgewidth=1.6 if marker == "x" else 0.0,
            color=colour,
        )
    lower.set_yticks([-index for index in range(len(names))], names)
    lower.set_ylim(-len(names) + 0.4, 0.7)
    lower.tick_params(axis="y", length=0)
    lower.grid(axis="y", visible=False)
    lower.set_xlim((begin - end) / unit * 1.02, (end - begin) / unit * 0.02)
    word = "minutes" if unit > 1 else "seconds"
    lower.set_xlabel(f"{word} before the end")
    lower.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    return True


def _times(run_data: RunData, kinds: tuple[type[JournalEvent], ...], begin: float) -> list[float]:
    events = [e for e in run_data.events if isinstance(e, kinds) and not _is_only_words(e)]
    times = [moment(event.time) for event in events]
    return [value for value in times if value >= begin]


def _is_only_words(event: JournalEvent) -> bool:
    """Whether an action was refused or only considered, or this is the later verdict on one."""
    return isinstance(event, ActionEvent) and (event.is_verdict or event.applied is False)


def _draw_attempts(
    axis: Any, run_data: RunData, report: CrashReport, begin: float, end: float, unit: float
) -> None:
    for attempt in report.attempts:
        started, ended = _span_of(run_data, attempt.number, end)
        if not ended >= begin:
            continue
        started = max(started, begin)
        left, width = (started - end) / unit, (ended - started) / unit
        axis.barh(0, width, left=left, height=0.62, color=palette.GRID)
        if width * unit > 0.06 * (end - begin):
            axis.text(
                left + width / 2,
                0,
                f"attempt {attempt.number}",
                ha="center",
                va="center",
                fontsize=8,
                color=palette.INK,
            )
        if attempt.cause:
            good = attempt.cause == "completed"
            axis.plot(
                [(ended - end) / unit],
                [0],
                marker="o" if good else "X",
                markersize=8,
                markeredgewidth=0,
                color=palette.GOOD if good else palette.RESTART,
                clip_on=False,
            )


def _span_of(run_data: RunData, number: int, end: float) -> tuple[float, float]:
    times = [moment(event.time) for event in run_data.events if event.attempt == number]
    rows = run_data.steps.of_attempt(number)
    if len(rows):
        times += [float(rows.time[0]), float(rows.time[-1])]
    known = [value for value in times if math.isfinite(value)]
    ended = first_exit(run_data, number)
    exit_time = moment(ended.time) if ended else math.nan
    last = exit_time if math.isfinite(exit_time) else max(known, default=end)
    return min(known, default=end), last


def _draw_steps(axis: Any, times: Any, end: float, unit: float) -> None:
    if len(times) > MAX_TICKS:
        times = times[np.linspace(0, len(times) - 1, MAX_TICKS).astype(int)]
    axis.vlines((times - end) / unit, -1.25, -0.75, color=palette.LOSS, linewidth=0.7)


def _span(run_data: RunData) -> tuple[float, float]:
    """Returns the first and the last moment of the run; NaN for an empty one."""
    times = [moment(event.time) for event in run_data.events]
    if len(run_data.steps):
        times += [float(run_data.steps.time[0]), float(run_data.steps.time[-1])]
    known = [value for value in times if math.isfinite(value) and value > 0]
    return (min(known), max(known)) if known else (math.nan, math.nan)
