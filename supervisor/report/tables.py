"""The tables of a report, the same for the page and for the text. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from supervisor.report.facts.crash_report import AttemptFacts, CrashReport, Intervention, RankFacts
from supervisor.report.facts.figures import duration, number, show

SINGLE = 20
"""Up to so many treatments have a line each; if there are more, those of a kind share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One line: a treatment, or all of its kind within an attempt.

    Attributes:
        steps: ``120``, or ``120–178`` for several.
        outcome: ``failed``, or ``28 failed, 2 helped``.
        cost_s: of all of them; NaN if none was recorded.
        detail: of the last one.
    """

    steps: str
    times: int
    attempt: int | None
    name: str
    cause: str
    cost_s: float
    outcome: str
    detail: str


def sum_up_treatments(items: Sequence[Intervention]) -> tuple[Tried, ...]:
    """Returns a line for each of a few treatments, a line for each kind of many, in order."""
    groups: dict[object, list[Intervention]] = {}
    for index, item in enumerate(items):
        kind = (item.attempt, item.name, item.cause)
        groups.setdefault(kind if len(items) > SINGLE else index, []).append(item)
    return tuple(_line(group) for group in groups.values())


def _line(group: Sequence[Intervention]) -> Tried:
    steps = [item.step for item in group if item.step is not None]
    first, last = min(steps, default=None), max(steps, default=None)
    known = [item.cost_s for item in group if item.cost_s == item.cost_s]
    outcomes = Counter(_outcome(item) for item in group)
    several = [f"{amount} {outcome}" for outcome, amount in outcomes.most_common()]
    return Tried(
        steps="–" if first is None else f"{first}" if first == last else f"{first}–{last}",
        times=len(group),
        attempt=group[-1].attempt,
        name=group[-1].name,
        cause=group[-1].cause,
        cost_s=sum(known) if known else float("nan"),
        outcome=", ".join(several) if len(group) > 1 else _outcome(group[0]),
        detail=group[-1].detail,
    )


def _outcome(item: Intervention) -> str:
    outcome = item.outcome or "–"
    if item.undone_step is None:
        return outcome
    return f"{outcome}, taken back at step {item.undone_step}"


MISSING = "–"
"""What stands where nothing is known."""


def time_taken(value: Any) -> str:
    """Returns a number of seconds in seconds, minutes or hours."""
    return duration(number(value))


def in_words(value: Any) -> str:
    """Returns a code without its underscores."""
    return str(value).replace("_", " ")


def percent(value: Any) -> str:
    """Returns a share in per cent."""
    share = 100 * number(value)
    if not math.isfinite(share):
        return MISSING
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %"


def error_percent(value: Any) -> str:
    """As `percent`, for errors: small ones with two digits, ``infinite`` for an infinite one."""
    share = 100 * number(value)
    if math.isinf(share):
        return "infinite"
    return f"{share:.2g} %" if abs(share) < 10 else percent(value)


def clocktime(value: Any) -> str:
    """Returns ``03:12:07`` of an ISO 8601 time; the text itself if it is none."""
    found = re.search(r"T(\d\d:\d\d:\d\d)", str(value))
    return found.group(1) if found else str(value)


PARTS = (
    ("useful", "useful_s", "part of the final weights"),
    ("replayed", "replayed_s", "done again or thrown away"),
    ("stalled", "stalled_s", "standing still for checkpoints and treatments, or hung"),
    ("down", "down_s", "between two attempts"),
    ("other", "other_s", "start, set-up and end of the script"),
)
"""What a run's time went into: name, field of the report, meaning."""


class CostPart(NamedTuple):
    """What some of a run's time went into; `share` is that of the whole time."""

    name: str
    seconds: float
    share: float
    meaning: str


class Column(NamedTuple):
    """A heading, and how its cells look.

    Attributes:
        kind: ``number``, ``name`` (of a tensor, a layer, a file), ``long`` (a sentence), ``line``
            (never wrapped), ``part`` (of the time, with its colour), or empty.
    """

    heading: str
    kind: str


class Table(NamedTuple):
    """Columns, and rows of plain text; the templates escape it."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


_Cells: TypeAlias = tuple[str, str, Callable[[Any], str]]
"""Heading and kind of a column, and what gives its cell of a row."""


def build_tables(report: CrashReport, explain: Mapping[str, Any] | None) -> dict[str, Table]:
    """Returns all tables by name, those without rows included."""
    explain = explain or {}
    return {
        "tried": _tried(report),
        "rates": _rates(report),
        "replays": _replays(explain.get("replays") or ()),
        "precision": _precision((explain.get("precision") or {}).get("layers") or ()),
        "incidents": _incidents(report),
        "cost": _cost(report),
        "attempts": _attempts(report),
        "ranks": _ranks(report),
        "alerts": _alerts(report),
        "observed": _observed(report),
        "anomalies": _anomalies(report),
        "unhealthy": _unhealthy(report),
        "gradient_flow": _gradient_flow(report),
    }


def cost_parts(report: CrashReport) -> tuple[CostPart, ...]:
    """Returns what the time of the run went into."""
    cost, wall_s = report.cost, report.cost.wall_s
    found = ((name, getattr(cost, field), meaning) for name, field, meaning in PARTS)
    return tuple(
        CostPart(name, seconds, seconds / wall_s if wall_s > 0 else 0.0, meaning)
        for name, seconds, meaning in found
    )


def _table(rows: Sequence[Any], *columns: _Cells) -> Table:
    return Table(
        tuple(Column(heading, kind) for heading, kind, _ in columns),
        tuple(tuple(cell(row) for _, _, cell in columns) for row in rows),
    )


def _tried(report: CrashReport) -> Table:
    return _table(
        sum_up_treatments(report.interventions),
        ("Step", "number", lambda one: one.steps),
        ("Treatment", "", lambda one: in_words(one.name) + _times(one.times)),
        ("Because of", "", lambda one: in_words(one.cause or MISSING)),
        ("Cost", "number", lambda one: time_taken(one.cost_s)),
        ("Outcome", "", lambda one: one.outcome),
        ("Detail", "long", lambda one: one.detail),
    )


def _times(times: int) -> str:
    return f", {times} times" if times > 1 else ""


def _rates(report: CrashReport) -> Table:
    return _table(
        report.rate_changes,
        ("Steps", "number", lambda one: f"{one.first_step}–{one.last_step}"),
        ("How many", "number", lambda one: str(one.steps)),
        ("Asked for", "number", lambda one: _range(one.asked_low, one.asked_high)),
        ("Applied", "number", lambda one: _range(one.applied_low, one.applied_high)),
    )


def _range(low: float, high: float) -> str:
    return show(low) if low == high else f"{show(low)} to {show(high)}"


def _replays(replays: Sequence[Mapping[str, Any]]) -> Table:
    return _table(
        replays,
        ("Replayed with", "", lambda one: str(one["change"] or MISSING)),
        ("Crashed", "", lambda one: _yes_or_no(one["crashed"])),
        ("At step", "number", lambda one: show(one["at_step"])),
    )


def _precision(layers: Sequence[Mapping[str, Any]]) -> Table:
    return _table(
        layers,
        ("Layer", "name", lambda one: str(one["name"] or MISSING)),
        ("Type", "", lambda one: str(one["type"] or MISSING)),
        ("Error", "number", lambda one: error_percent(one["relative_error"])),
        ("Of its own", "number", lambda one: error_percent(one["own_error"])),
    )


def _incidents(report: CrashReport) -> Table:
    return _table(
        report.incidents,
        ("Step", "number", lambda one: show(one.step)),
        ("Attempt", "number", lambda one: show(one.attempt)),
        ("Trouble", "", lambda one: in_words(one.key)),
        ("What happened", "long", lambda one: one.sentence),
        ("Overcome", "", lambda one: _yes_or_no(one.survived)),
    )


def _cost(report: CrashReport) -> Table:
    return _table(
        cost_parts(report),
        ("Part", "part", lambda one: one.name),
        ("Time", "number", lambda one: time_taken(one.seconds)),
        ("Share", "number", lambda one: percent(one.share)),
        ("What it is", "long", lambda one: one.meaning),
    )


def _attempts(report: CrashReport) -> Table:
    return _table(
        report.attempts,
        ("#", "number", lambda one: str(one.number)),
        ("Started", "line", lambda one: one.started or MISSING),
        ("Took", "number", lambda one: time_taken(one.seconds)),
        ("Began", "line", _beginning),
        ("Steps", "number", _steps),
        ("Ended with", "", _ending),
        ("Evidence", "long", lambda one: "; ".join(one.evidence)),
    )


def _ranks(report: CrashReport) -> Table:
    return _table(
        report.ranks,
        ("Rank", "number", lambda one: str(one.rank)),
        (
            "Last step",
            "number",
            lambda one: MISSING if one.last_step is None else str(one.last_step),
        ),
        ("Its last loss", "number", lambda one: show(one.last_loss)),
        ("Most memory (GiB)", "number", lambda one: show(one.memory_gib)),
        ("Attempts it ended first", "number", lambda one: str(one.failures)),
        ("Hangs it caused", "number", lambda one: str(one.hangs)),
        ("Own pace", "number", _pace),
    )


def _pace(one: RankFacts) -> str:
    """The fastest rank has 1; a slow one has the step from which it kept the others waiting."""
    if one.pace is None:
        return MISSING
    since = "" if one.slow_from is None else f", slow from step {one.slow_from}"
    return f"{one.pace:.2f}{since}"


def _beginning(attempt: AttemptFacts) -> str:
    if attempt.from_step is None:
        return "from the start"
    return ", ".join(filter(None, (f"at step {attempt.from_step}", attempt.exactness)))


def _steps(attempt: AttemptFacts) -> str:
    return "none" if attempt.first_step is None else f"{attempt.first_step}–{attempt.last_step}"


def _ending(attempt: AttemptFacts) -> str:
    cause = in_words(attempt.cause or "unknown")
    if attempt.signum:
        return f"{cause} (signal {attempt.signum})"
    return f"{cause} (code {attempt.returncode})" if attempt.returncode else cause


def _alerts(report: CrashReport) -> Table:
    return _table(
        report.alerts.latest if report.alerts else (),
        ("Step", "number", lambda one: show(one.step)),
        ("Severity", "", lambda one: one.severity),
        ("Detector", "", lambda one: in_words(one.detector)),
        ("What it says", "long", lambda one: one.message),
    )


def _observed(report: CrashReport) -> Table:
    return _table(
        report.observed,
        ("Value", "name", lambda one: one.name),
        ("Steps", "number", lambda one: str(one.count)),
        ("First", "number", lambda one: show(one.first)),
        ("Lowest", "number", lambda one: show(one.lowest)),
        ("Highest", "number", lambda one: show(one.highest)),
        ("Last", "number", lambda one: show(one.last)),
    )


def _anomalies(report: CrashReport) -> Table:
    return _table(
        report.anomalies,
        ("Step", "number", lambda one: show(one.step)),
        ("Loss", "number", lambda one: show(one.loss)),
        ("Gradient norm", "number", lambda one: show(one.grad_norm)),
        ("What the statistics say", "long", lambda one: one.verdict),
        ("Batch", "", lambda one: one.batch),
        ("Kept in", "name", lambda one: one.data_dir),
    )


def _unhealthy(report: CrashReport) -> Table:
    return _table(
        report.unhealthy,
        ("Tensor", "name", lambda row: str(row["name"])),
        ("What", "", lambda row: str(row["kind"])),
        ("Worst", "", lambda row: str(row["problem"])),
        ("NaN", "number", lambda row: show(row["nan_count"])),
        ("Infinite", "number", lambda row: show(row["inf_count"])),
        ("Huge", "number", lambda row: show(row["huge_count"])),
        ("Largest finite", "number", lambda row: show(row["max_abs"])),
    )


def _gradient_flow(report: CrashReport) -> Table:
    return _table(
        report.gradient_flow,
        ("Layer", "name", lambda row: str(row["name"])),
        ("Norm", "number", lambda row: show(row["norm"])),
        ("Mean", "number", lambda row: show(row["mean"])),
        ("Max", "number", lambda row: show(row["max"])),
        ("Min", "number", lambda row: show(row["min"])),
        ("Zeros", "number", lambda row: percent(row["zero_share"])),
        ("Not finite", "number", lambda row: show(row["nonfinite"])),
    )


def _yes_or_no(value: Any) -> str:
    return "yes" if value else "no"
