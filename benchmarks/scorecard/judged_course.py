"""A recorded course with its labels, and what a pipeline makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.healthy import KINDS, NEED_A_LIVE_RUN
from benchmarks.healthy.base import records_of
from benchmarks.public_logs.labels import read_index
from benchmarks.scorecard.alarms import raised
from benchmarks.scorecard.labelled_run import load_runs
from benchmarks.scorecard.rules import switched_off
from supervisor.analysis.backtest.trace import read_trace
from supervisor.config import load_policy
from supervisor.ladder.escalation import EscalationLadder
from supervisor.ladder.rungs import FREE
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import Decision, StepRecord
from supervisor.settings import PolicySettings, RunSettings

HEALTHY_STEPS = 450
LATE = 5
"""Steps after the peak within which a treatment still meets the crash."""


@dataclass(frozen=True)
class Course:
    """One recorded run.

    Attributes:
        healthy: at which steps an alarm, a warning, an alert or a treatment is false.
        crashes: (first step at which an alarm finds it, its peak) of each.
    """

    name: str
    records: tuple[StepRecord, ...]
    healthy: np.ndarray
    crashes: tuple[tuple[int, int], ...] = ()


@dataclass
class Worth:
    """What was made of some courses; sums by `add`.

    Attributes:
        found: course and number of a crash → steps from its first alarm to its peak.
        treated: crashes treated until `LATE` steps after their peak.
        false_alarms, false_warnings: raised at healthy steps.
        treatments: at healthy steps.
    """

    found: dict[str, int] = field(default_factory=dict)
    treated: int = 0
    false_alarms: int = 0
    false_warnings: int = 0
    treatments: int = 0

    def add(self, other: Worth) -> None:
        self.found |= other.found
        self.treated += other.treated
        self.false_alarms += other.false_alarms
        self.false_warnings += other.false_warnings
        self.treatments += other.treatments


def corpus_courses(folder: Path, splits: Collection[str]) -> Iterator[Course]:
    """The runs of these splits; activations are among what was seen, as at each look."""
    for run in load_runs(folder):
        if run.split in splits:
            crashes = (run.window,) if run.outcome.crashed else ()
            records = tuple(run.trace.records(live=("activation_max",)))
            yield Course(run.trace.recipe.name, records, run.healthy, crashes)


def tuning_logs(folder: Path) -> Iterator[Course]:
    """The public logs that rules may be chosen on, never the others."""
    for log in read_index(folder, "tune"):
        records = tuple(read_trace(folder / f"{log.name}.csv"))
        crashes = tuple((onset, peak) for onset, peak, kind in log.events if kind != "spike")
        yield Course(log.name, records, np.full(len(records), log.healthy), crashes)


def healthy_trainings() -> Iterator[Course]:
    """One training of each kind of `benchmarks.healthy` whose records tell enough."""
    for kind in (kind for kind in KINDS if kind not in NEED_A_LIVE_RUN):
        records = tuple(records_of(KINDS[kind], HEALTHY_STEPS, 0))
        yield Course(kind, records, np.full(len(records), True))


def judge(course: Course, without: str = "") -> list[Judgement]:
    with switched_off(without):
        return list(Pipeline(RunSettings(), load_policy()).update_all(course.records))


def worth(course: Course, judged: Sequence[Judgement]) -> Worth:
    decisions = [judgement.decision for judgement in judged]
    return _worth(course, judged, decisions, load_policy())


def worth_of_ladder(course: Course, judged: Sequence[Judgement], without: str) -> Worth:
    """The same with another ladder: what detectors and predictor think does not depend on it."""
    policy = load_policy()
    ladder = EscalationLadder(policy)
    with switched_off(without):
        decisions = [ladder.decide(j.record, j.alerts, j.risk) for j in judged]
    return _worth(course, judged, decisions, policy)


def _worth(
    course: Course,
    judged: Sequence[Judgement],
    decisions: Sequence[Decision | None],
    policy: PolicySettings,
) -> Worth:
    risk = np.array([judgement.risk.probability for judgement in judged])
    treats = np.array([d is not None and not FREE.issuperset(d.actions) for d in decisions])
    alarm = risk >= policy.alarm_threshold
    result = Worth(
        false_alarms=int(course.healthy[raised(alarm)].sum()),
        false_warnings=int(course.healthy[raised(risk >= policy.warn_threshold)].sum()),
        treatments=int(course.healthy[treats].sum()),
    )
    for number, (first, peak) in enumerate(course.crashes):
        steps = np.flatnonzero(alarm[first:peak])
        if len(steps):
            result.found[f"{course.name} {number}"] = peak - first - int(steps[0])
        result.treated += bool(treats[first : peak + LATE + 1].any())
    return result


def alerts_of(course: Course, judged: Sequence[Judgement]) -> tuple[Counter[str], dict[str, int]]:
    """(false alerts by detector, detector → steps before the peak that it told of a crash)."""
    wrong: Counter[str] = Counter()
    told: dict[str, int] = {}
    for step, judgement in enumerate(judged):
        for alert in judgement.alerts:
            wrong[alert.detector] += bool(course.healthy[step])
            for first, peak in course.crashes:
                if first <= step < peak:
                    told.setdefault(alert.detector, peak - step)
    return wrong, told
