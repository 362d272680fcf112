"""How many alerts there were, of which severity and category, and the latest ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.codes import Severity
from supervisor.events.step_events import AlertEvent

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
