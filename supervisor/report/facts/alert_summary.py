"""How many alerts there were, of which severity and category, and the latest ones (T6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.storage.journal.treatments import times

LATEST = 5
SEVERITIES = ("critical", "high", "medium", "low")


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


def summarise_alerts(events: Sequence[Mapping[str, Any]]) -> AlertSummary | None:
    """Sums up events of kind ``alert`` in the order of time; None without one."""
    if not events:
        return None
    severities: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    for event in events:
        severities[str(event.get("severity") or "unknown")] += times(event)
        categories[str(event.get("category") or "other")] += times(event)
    known = [name for name in SEVERITIES if name in severities]
    others = sorted(severities.keys() - set(SEVERITIES))
    return AlertSummary(
        total=severities.total(),
        left_out=severities.total() - len(events),
        by_severity={name: severities[name] for name in (*known, *others)},
        by_category=dict(categories.most_common()),
        latest=tuple(_latest(event) for event in events[: -LATEST - 1 : -1]),
    )


def _latest(event: Mapping[str, Any]) -> LatestAlert:
    step = event.get("step")
    return LatestAlert(
        step=step if isinstance(step, int) else None,
        severity=str(event.get("severity") or ""),
        detector=str(event.get("detector") or ""),
        message=str(event.get("message") or ""),
    )
