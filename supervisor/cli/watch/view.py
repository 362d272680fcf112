"""The content of a frame of `supervisor watch`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from supervisor.records import StepRecord, plain
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings

HISTORY = 1000
"""Steps in the curves; several share a column."""
LINES = 60
"""Newest events kept: more than a tall screen can show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One line of the list of events.

    Attributes:
        time: as people read it, empty if unknown.
        step: None for what belongs to no step.
    """

    kind: str
    sentence: str
    time: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine:
    """The newest step of one of several ranks; as constructed, it has made none.

    Attributes:
        loss, step_time_s, memory_gib: NaN where unknown.
        ago_s: since the step.
    """

    rank: int
    step: int | None = None
    loss: float = math.nan
    step_time_s: float = math.nan
    memory_gib: float = math.nan
    ago_s: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchView:
    """One frame.

    Attributes:
        title: which run.
        state: what it is doing, or how it ended.
        attempt: 0 before the first.
        record: the newest step; None before the first.
        risk: of the newest step that was judged; NaN before.
        steps, losses, risks: the curves, oldest first; as many of each, or none.
        events: newest last.
        observed: the newest value of everything that the script observes.
        facts: times, rates and sizes of the run: name → figure.
        ended: there will be no further frame.
        lines: of the run's policy.
        ranks: one line for each, if there are several.
        shortfalls: what cannot be relied on, worst first.
        first_lines: see `supervisor/first_lines.py`; empty for what is no run.
    """

    title: str
    state: str
    attempt: int = 0
    record: StepRecord | None = None
    risk: float = float("nan")
    steps: Sequence[int] = ()
    losses: Sequence[float] = ()
    risks: Sequence[float] = ()
    events: Sequence[WatchEvent] = ()
    observed: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    shortfalls: Sequence[str] = ()
    first_lines: Sequence[str] = ()
    ended: bool = False
    lines: RiskLines = field(default_factory=lambda: RiskLines.of(PolicySettings()))
    ranks: Sequence[RankLine] = ()


def as_json(view: WatchView) -> dict[str, Any]:
    """Returns the frame without its curves, for programs; unknown values are None."""
    record = view.record
    return {
        "run": view.title,
        "state": view.state,
        "ended": view.ended,
        "first_lines": list(view.first_lines),
        "attempt": view.attempt,
        "step": record.step if record is not None else None,
        "loss": record.loss if record is not None and record.loss_seen else None,
        "grad_norm": record.grad_norm if record is not None and record.grad_norm_seen else None,
        "lr": record.lr if record is not None and not math.isnan(record.lr) else None,
        "risk": None if math.isnan(view.risk) else view.risk,
        "observed": dict(view.observed),
        "facts": dict(view.facts),
        "events": [plain(event) for event in view.events],
        "ranks": [_known(plain(line)) for line in view.ranks],
    }


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in values.items()
    }
