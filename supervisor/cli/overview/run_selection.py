"""Which runs are shown, and in which order."""

from __future__ import annotations

import fnmatch
import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from supervisor.cli.overview.run_phase import unix_time
from supervisor.config_check import did_you_mean

if TYPE_CHECKING:
    from supervisor.cli.overview.run_overview import RunOverview

SICK = "sick"
VERDICTS = (
    *("running", "completed", "gave_up", "interrupted", "failed"),
    *("died", "unreadable", SICK),
)
Sortable = tuple[bool, float | str]
"""Unknown values come last."""


def _number(value: float | None) -> Sortable:
    known = value is not None and not math.isnan(value)
    return (not known, value if known and value is not None else 0.0)


ORDERS: dict[str, Callable[[RunOverview], Sortable]] = {
    "newest": lambda run: _number(-unix_time(run.started) if run.started else None),
    "name": lambda run: (False, run.name),
    "script": lambda run: (not run.script, run.script),
    "verdict": lambda run: (False, run.verdict),
    "step": lambda run: _number(None if run.last_step is None else -run.last_step),
    "loss": lambda run: _number(run.last_loss),
    "treatments": lambda run: _number(-run.treatments),
    "attempts": lambda run: _number(-run.attempts),
}
"""Name → key: newest, smallest loss, most steps, treatments and attempts first."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a user wants to see.

    Attributes:
        verdicts: words of the verdict (``completed``, ``sick``), any of them; empty: all.
        since_s: unix time; only runs that were started later.
        name: pattern (``*``, ``?``) or part of the run's or the script's name.
    """

    verdicts: tuple[str, ...] = ()
    since_s: float | None = None
    name: str = ""

    def holds(self, run: RunOverview) -> bool:
        """Whether a run is shown."""
        is_wanted = run.state in self.verdicts or (run.is_sick and SICK in self.verdicts)
        if self.verdicts and not is_wanted:
            return False
        if self.since_s is not None and unix_time(run.started) < self.since_s:
            return False
        pattern = self.name if set("*?[") & set(self.name) else f"*{self.name}*"
        return any(fnmatch.fnmatchcase(text, pattern) for text in (run.name, run.script))


def arrange(runs: Sequence[RunOverview], order: str, *, reverse: bool) -> list[RunOverview]:
    """Returns the runs in one of the `ORDERS`, or backwards; unknown ones are always last."""
    key = ORDERS[order]
    known = sorted((run for run in runs if not key(run)[0]), key=key, reverse=reverse)
    return [*known, *(run for run in runs if key(run)[0])]


def verdicts(text: str) -> tuple[str, ...]:
    """Returns the verdicts in a comma-separated list.

    Raises:
        ArgumentTypeError: there is no such verdict.
    """
    found = tuple(text.replace(",", " ").split())
    for word in found or (text,):
        if word not in VERDICTS:
            hint = did_you_mean(word, VERDICTS) or f"; known: {', '.join(VERDICTS)}"
            raise ArgumentTypeError(f"{word[:40]!r}: no such verdict{hint}")
    return found


def since(text: str, now: Callable[[], datetime] = datetime.now) -> float:
    """Returns the unix time of ``7d``, ``12h`` (ago) or ``2026-11-24`` (local time).

    Raises:
        ArgumentTypeError: it is neither.
    """
    try:
        if text[-1:] in _UNITS:
            age_s = float(text[:-1]) * _UNITS[text[-1]]
            if math.isfinite(age_s) and age_s >= 0:
                return now().timestamp() - age_s
        else:
            return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):  # said below, as of an age that cannot be
        pass
    raise ArgumentTypeError(f"{text[:40]}: give an age (30m, 12h, 7d, 2w) or a date (2026-11-24)")
