"""What was tried, as a table that stays readable when a treatment was repeated many times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.report.facts.crash_report import Intervention

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
