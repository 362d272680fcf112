"""Runs a policy over a recorded run, without a GPU: what would have been seen and decided."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.analysis.backtest.log_file import Remarks
from supervisor.analysis.backtest.trace import read_trace
from supervisor.errors import UsageError
from supervisor.ladder.rungs import FREE
from supervisor.pipeline import Judgement, Pipeline
from supervisor.prediction.moving_objective import reward_of
from supervisor.records import Decision, StepRecord, plain
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings, RunSettings

REARM_STEPS = 50
"""Steps for which the risk must stay below half the threshold before the next alarm."""


class AlarmEdge:
    """Turns risk into alarms: rising edges that re-arm after calm steps."""

    def __init__(self, threshold: float) -> None:
        self._lines = RiskLines(warn=threshold, alarm=threshold)
        self._armed = True
        self._calm = 0

    def update(self, risk: float, *, nonfinite: bool = False) -> bool:
        """Whether an alarm is raised at this step."""
        if self._lines.is_alarm(risk) or nonfinite:
            self._calm = 0
            raised, self._armed = self._armed, False
            return raised
        self._calm = self._calm + 1 if self._lines.is_calm(risk) else 0
        if self._calm >= REARM_STEPS:
            self._armed = True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    step: int
    risk: float
    calibrated: float
    reason: str
    contributions: Mapping[str, float]


@dataclass(slots=True)
class Signal:
    """One recorded signal, in 16 bytes a step: runs have millions of them.

    Attributes:
        name: as a plot labels it.
        steps, values: of the rows at which it was seen.
        bad: steps at which it was not finite.
    """

    name: str
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    bad: list[int] = field(default_factory=list)

    def add(self, step: int, value: float, *, seen: bool) -> None:
        if not seen:
            return
        self.steps.append(step)
        self.values.append(value)
        if not math.isfinite(value):
            self.bad.append(step)


@dataclass(slots=True)
class BacktestResult:
    """What a pipeline said of a recorded run.

    Attributes:
        steps: rows read.
        risk: probability of every row.
        at: step of every row.
        alarms: see `AlarmEdge`.
        warnings: steps at which the risk rose through the warning line.
        decisions: what the ladder would have done; the recorded run was not treated.
        errors: detectors that raised.
        remarks: what of the log was left out, and how its columns were understood.
        loss, grad_norm, reward: what the plot shows.
    """

    steps: int = 0
    risk: list[float] = field(default_factory=list)
    at: array[int] = field(default_factory=lambda: array("q"))
    alarms: list[Alarm] = field(default_factory=list)
    warnings: list[int] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    loss: Signal = field(default_factory=lambda: Signal("loss"))
    grad_norm: Signal = field(default_factory=lambda: Signal("gradient norm"))
    reward: Signal = field(default_factory=lambda: Signal("reward"))

    @property
    def shown(self) -> list[Signal]:
        """The signals that were seen."""
        return [one for one in (self.loss, self.grad_norm, self.reward) if one.steps]

    @property
    def first_alarm(self) -> int | None:
        return self.alarms[0].step if self.alarms else None

    @property
    def first_treatment(self) -> int | None:
        """The first step with a decision for more than a checkpoint."""
        treated = (d.step for d in self.decisions if not FREE.issuperset(d.actions))
        return next(treated, None)

    def to_dict(self) -> dict[str, Any]:
        """The document of `supervisor backtest --json`."""
        told = ("step", "actions", "rung", "undo")
        return {
            "steps": self.steps,
            "first_alarm": self.first_alarm,
            "first_treatment": self.first_treatment,
            "alarms": plain(self.alarms),
            "risk": self.risk,
            "decisions": [
                {name: plain(getattr(decision, name)) for name in told}
                for decision in self.decisions
            ],
        }


def summary(result: BacktestResult) -> str:
    """Steps, alarms and decisions in words."""
    counts = {"step": result.steps, "alarm": len(result.alarms), "decision": len(result.decisions)}
    return ", ".join(f"{n:,} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items())


def backtest(
    path: Path | str,
    settings: RunSettings,
    policy: PolicySettings,
    mapping: Mapping[str, str] | None = None,
) -> BacktestResult:
    """Replays the steps recorded at `path` (a log or a run directory) through a fresh pipeline.

    Args:
        mapping: see `read_trace`.

    Raises:
        UsageError: the log cannot be read, or has no step.
        ConfigError: the config's detectors are wrong.
    """
    remarks = Remarks()
    records = _in_environment(read_trace(path, mapping, remarks), settings.in_environment)
    result = backtest_records(records, settings, policy)
    result.remarks = remarks.sentences()
    if not result.shown:
        why = "".join(f"; {sentence}" for sentence in result.remarks)
        what = "no loss" if result.steps else "no step"
        raise UsageError(f"{path}: {what} in it{why}: give a log or a run that has some")
    return result


def _in_environment(records: Iterable[StepRecord], given: bool | None) -> Iterator[StepRecord]:
    """What a log cannot know the user may say."""
    for record in records:
        if given is not None:
            record.in_environment = given
        yield record


def backtest_records(
    records: Iterable[StepRecord], settings: RunSettings, policy: PolicySettings
) -> BacktestResult:
    """Like `backtest`, for records in memory."""
    pipeline = Pipeline(settings, policy)
    result = BacktestResult()
    alarms = AlarmEdge(policy.alarm_threshold)
    warnings = AlarmEdge(policy.warn_threshold)
    for record in records:
        _take_in(result, pipeline.update(record), alarms, warnings)
    return result


def _take_in(
    result: BacktestResult, judgement: Judgement, alarms: AlarmEdge, warnings: AlarmEdge
) -> None:
    record, risk = judgement.record, judgement.risk
    result.steps += 1
    result.loss.add(record.step, record.loss, seen=record.loss_seen)
    result.grad_norm.add(record.step, record.grad_norm, seen=record.grad_norm_seen)
    reward = reward_of(record.observed or {})
    result.reward.add(record.step, reward, seen=math.isfinite(reward))
    result.risk.append(risk.probability)
    result.at.append(record.step)
    result.errors.extend(judgement.errors)
    if judgement.decision is not None:
        result.decisions.append(judgement.decision)
    if warnings.update(risk.probability):
        result.warnings.append(record.step)
    # A non-finite value that a loss scaler deals with is no alarm; the predictor tells them apart.
    if alarms.update(risk.probability, nonfinite=record.has_nonfinite_loss):
        result.alarms.append(
            Alarm(
                step=record.step,
                risk=risk.probability,
                calibrated=risk.calibrated,
                reason=risk.reason,
                contributions=dict(risk.contributions),
            )
        )


ALARM, DECISION = "tab:red", "tab:blue"


def plot_backtest(
    result: BacktestResult, path: Path, *, alarm_threshold: float = 0.5, title: str = ""
) -> None:
    """Writes a PNG to `path`.

    Raises:
        OSError: `path` cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    signals = result.shown or [result.loss]
    heights = [2.0] * len(signals) + [1.2]
    *above, below = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for axis, signal in zip(above, signals, strict=True):
        _draw_signal(axis, signal)
        for alarm in result.alarms:
            axis.axvline(alarm.step, color=ALARM, linewidth=0.8, alpha=0.6)
    below.plot(result.at, result.risk, linewidth=0.8, color=ALARM)
    below.axhline(alarm_threshold, color="gray", linewidth=0.8, linestyle="--")
    below.set_ylim(0, 1)
    below.set_ylabel("risk")
    below.set_xlabel("step")
    for decision in result.decisions:
        below.axvline(decision.step, color=DECISION, linewidth=0.5, alpha=0.3)
    figure.suptitle(f"{title}: {summary(result)}" if title else summary(result))
    _explain(figure)
    figure.savefig(path, dpi=120)


def _draw_signal(axis: Any, signal: Signal) -> None:
    finite = [value for value in signal.values if math.isfinite(value)]
    shown = [value if math.isfinite(value) else math.nan for value in signal.values]
    axis.plot(signal.steps, shown, linewidth=0.8, color="black")
    if finite and min(finite) > 0:
        axis.set_yscale("log")
    axis.set_ylabel(signal.name)
    above = axis.get_xaxis_transform()
    places = [0.95] * len(signal.bad)
    axis.plot(signal.bad, places, "x", color=ALARM, markersize=5, transform=above)


def _explain(figure: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=ALARM, label="alarm"),
        Line2D([], [], color=ALARM, marker="x", linestyle="none", label="NaN or infinite"),
        Line2D([], [], color=DECISION, alpha=0.5, label="something would be done"),
        Line2D([], [], color="gray", linestyle="--", label="alarm line"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
