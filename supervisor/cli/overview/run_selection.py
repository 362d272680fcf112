"""Which runs are shown, and in which order."""

from __future__ import annotations

import fnmatch
import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a user wants to see.

    Attributes:
        verdicts: words of the verdict (``completed``, ``sick``), any of them; empty: all.
        name: pattern (``*``, ``?``) or part of the run's or the script's name.
    """

    verdicts: tuple[str, ...] = ()
    name: str = ""

    def holds(self, run: RunOverview) -> bool:
        """Whether a run is shown."""
        is_wanted = run.state in self.verdicts or (run.is_sick and SICK in self.verdicts)
        if self.verdicts and not is_wanted:
            return False
        pattern = self.name if set("*?[") & set(self.name) else f"*{self.name}*"
        return any(fnmatch.fnmatchcase(text, pattern) for text in (run.name, run.script))


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
