"""What a crash report says, as frozen records: the single source of the HTML, Markdown and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.codes import ExitSign, Severity
from supervisor.events.step_events import AlertEvent
from supervisor.records import NAN, plain, strict
from supervisor.report.facts.observed_values import ObservedValue
from supervisor.report.facts.step_table import RateChange
from supervisor.shortfalls import Shortfall

LATEST = 5
SEVERITIES = (*(severity.value for severity in Severity), "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestAlert:
    step: int | None
    severity: str
    detector: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSummary:
    """Totals of a run's alerts.

    Attributes:
        left_out: how many of them are counted in the journal, and not written.
    """

    total: int
    left_out: int
    by_severity: dict[str, int]
    by_category: dict[str, int]
    latest: tuple[LatestAlert, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldMistake:
    """A silent training mistake that was proved in the run.

    Attributes:
        where: ``file:line`` of the script, or the module or parameter.
    """

    kind: str
    message: str
    where: str
    step: int | None
    mend: str


def find_mistakes(events: Sequence[AlertEvent]) -> tuple[ToldMistake, ...]:
    """Each kind once, in the order of time."""
    first: dict[str, AlertEvent] = {}
    for event in events:
        if event.category == "mistake":
            first.setdefault(event.alert_kind, event)
    return tuple(
        ToldMistake(
            kind=kind,
            message=event.fact or event.message,
            where=str(event.metadata.get("where") or ", ".join(event.metadata.get("names") or ())),
            step=event.step,
            mend=str(event.metadata.get("mend") or ""),
        )
        for kind, event in first.items()
    )


def summarise_alerts(events: Sequence[AlertEvent]) -> AlertSummary | None:
    """Sums up alerts in the order of time; None without one."""
    if not events:
        return None
    severities: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    for event in events:
        severities[event.severity.value if event.severity else "unknown"] += event.times
        categories[event.category or "other"] += event.times
    return AlertSummary(
        total=severities.total(),
        left_out=severities.total() - len(events),
        by_severity={name: severities[name] for name in SEVERITIES if name in severities},
        by_category=dict(categories.most_common()),
        latest=tuple(_latest(event) for event in events[: -LATEST - 1 : -1]),
    )


def _latest(event: AlertEvent) -> LatestAlert:
    return LatestAlert(
        step=event.step,
        severity=event.severity.value if event.severity else "",
        detector=event.detector,
        message=event.message,
    )


REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One line of the story, taken from one journal event.

    Attributes:
        time: ISO 8601, UTC, as in the journal; empty if the event had none.
        tone: how it is to be read: ``good``, ``info``, ``warn`` or ``bad``.
    """

    time: str
    kind: str
    tone: str
    text: str
    step: int | None = None
    attempt: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """One thing that was done about trouble, with its receipt.

    Attributes:
        cost_s: seconds the training stood still for it; NaN if not recorded.
        undone_step: step at which it was taken back; None if it was not.
    """

    name: str
    step: int | None
    attempt: int | None
    time: str
    cause: str = ""
    rung: int | None = None
    cost_s: float = NAN
    outcome: str = ""
    detail: str = ""
    undone_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """One launch of the worker, from its start to its exit.

    Attributes:
        from_step: step of the checkpoint it continued from; None when it began from nothing.
        exactness: ``exact``, ``approximate`` or empty (nothing was resumed).
        cause: exit cause; empty while it is not known.
        seconds: from start to exit, or to the last sign of life; NaN if unknown.
        sign, asked_bytes: what else is known of the exit, see `WorkerExit`.
    """

    number: int
    started: str = ""
    ended: str = ""
    seconds: float = NAN
    from_step: int | None = None
    exactness: str = ""
    first_step: int | None = None
    last_step: int | None = None
    cause: str = ""
    returncode: int | None = None
    signum: int | None = None
    evidence: tuple[str, ...] = ()
    sign: ExitSign | None = None
    asked_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Where the seconds of the run went; the five parts add up to `wall_s`.

    The useful share is that of the training itself, without the start and end of the script.

    Attributes:
        useful_s: computing updates that are part of the final weights.
        replayed_s: computing updates that were lost and done again, and fast-forwarding to them.
        stalled_s: standing still for checkpoints and treatments, or hung.
        down_s: no training between two attempts: exit noticed, backoff, start of the new process.
        other_s: start of the first attempt, the script's own set-up and end.
    """

    useful_s: float = 0.0
    replayed_s: float = 0.0
    stalled_s: float = 0.0
    down_s: float = 0.0
    other_s: float = 0.0
    wall_s: float = 0.0
    useful_steps: int = 0
    replayed_steps: int = 0
    skipped_updates: int = 0

    @property
    def useful_share(self) -> float:
        training_s = self.wall_s - self.other_s
        return self.useful_s / training_s if training_s > 0 else NAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One piece of trouble, from its first sign.

    Attributes:
        key: short name of the cause, see docs/report.md.
        sentence: what happened, with figures.
        survived: the run went on past it.
        sign: of the end of a process, what else is known of it.
        evidence_for: sentences with figures that speak for this cause.
        evidence_against: what would speak for another one, or was looked at and found normal.
    """

    key: str
    sentence: str
    step: int | None = None
    attempt: int | None = None
    time: str = ""
    survived: bool = False
    numerical: bool = False
    sign: ExitSign | None = None
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explosion:
    """The shape of a loss explosion and what it usually means.

    Attributes:
        shape: ``sudden_jump``, ``exponential_growth`` or ``oscillating_divergence``.
        onset_step, peak_step: first step out of the ordinary, and the worst one.
        factor: peak over the median before the onset; infinite when the loss became non-finite.
        likely_causes: what such a shape usually means; the cause alone where it is known.
        known_by: what has proved the cause; empty where it is only likely.
    """

    shape: str
    onset_step: int
    peak_step: int
    factor: float
    sentence: str
    likely_causes: tuple[str, ...]
    known_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One question of the decision tree with the answer that the facts give.

    Attributes:
        answer: one of `answers`, or ``unknown``.
        fact: what the answer rests on.
    """

    question: str
    answers: tuple[str, ...]
    answer: str
    fact: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPath:
    """The branch that was taken through the decision tree and the remedy at its end.

    Attributes:
        before_next: the remedy if the run need not be resumed; empty if it is the same.
    """

    branches: tuple[Branch, ...]
    remedy: str
    setting: str = ""
    before_next: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyVerdict:
    """One recorded anomaly with what the statistics say of it."""

    step: int | None
    rank: int | None
    loss: float
    grad_norm: float
    verdict: str
    batch: str = ""
    data_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Lines of a file of the run: stacks of a hang, or the end of a worker's log."""

    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One of several ranks.

    Attributes:
        last_step, last_loss, memory_gib: its own, as it has recorded them; None if it has not.
        failures: attempts that it was the first to end.
        hangs: hangs in which the others waited for it.
        pace: the fastest rank's time for what each does alone in a step (its batch, its forward),
            as a share of this one's; None without enough steps.
        slow_from: first step from which it needed more than a third longer than the fastest, for
            three windows of 64 steps; None if it never did.
    """

    rank: int
    last_step: int | None = None
    last_loss: float | None = None
    memory_gib: float | None = None
    failures: int = 0
    hangs: int = 0
    pace: float | None = None
    slow_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """Everything a report says. Each field is described in docs/report.md."""

    run_dir: str
    state: str
    end: str
    title: str
    verdict: str
    first_lines: tuple[str, ...] = ()
    root_cause: str
    root_cause_sentence: str
    mistakes: tuple[ToldMistake, ...] = ()
    overcome: bool = False
    resume_command: str
    next_steps: tuple[str, ...] = ()
    setting: str = ""
    evidence: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    incidents: tuple[Incident, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    explosion: Explosion | None = None
    decision: DecisionPath | None = None
    timeline: tuple[TimelineEntry, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    treatments: dict[str, int] = field(default_factory=dict)
    rate_changes: tuple[RateChange, ...] = ()
    attempts: tuple[AttemptFacts, ...] = ()
    ranks: tuple[RankFacts, ...] = ()
    cost: Cost = field(default_factory=Cost)
    anomalies: tuple[AnomalyVerdict, ...] = ()
    anomaly_count: int = 0
    gradient_flow: tuple[dict[str, Any], ...] = ()
    gradient_flow_step: int | None = None
    unhealthy: tuple[dict[str, Any], ...] = ()
    alerts: AlertSummary | None = None
    observed: tuple[ObservedValue, ...] = ()
    explain: dict[str, Any] | None = None
    stacks: tuple[Excerpt, ...] = ()
    log_tail: Excerpt | None = None
    memory: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    command: str = ""
    first_step: int | None = None
    last_step: int | None = None
    final_loss: float = NAN
    problems: tuple[str, ...] = ()
    version: int = REPORT_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Returns the document of report.json: strict JSON, non-finite numbers as strings."""
        value: dict[str, Any] = strict(plain(self))
        return value
