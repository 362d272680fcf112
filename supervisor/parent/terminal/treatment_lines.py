"""The terminal's lines about treatments: one each, or a count where there are many of a kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from supervisor.codes import Found
from supervisor.events.event import JournalEvent
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import ActionUndone
from supervisor.storage.journal.treatments import JournalTreatments

TOLD_EACH = 3
"""Up to so many of a kind have a line each, enough to see that it continues."""
ANSWERS = (Found.ANOTHER_LEVEL, Found.TRIAL_STEP, Found.SCRIPT_CHANGE)
"""What was found out about a loss that has left its level. Weights that the script has put back may
be meant, or a mistake (an older checkpoint): no experiment can say which, so it is told."""
AGAIN_S = 60.0
"""Later ones of the kind share a line, at most one in so many seconds."""


@dataclass(slots=True)
class _Kind:
    times: int = 0
    untold: int = 0
    last_step: Any = None
    told_s: float = 0.0


class TreatmentLines:
    """Turns the worker's events into lines, as they are merged. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._treatments = JournalTreatments()
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def of(self, events: Iterable[JournalEvent]) -> list[str]:
        """Returns the lines after these events, which may be none."""
        now_s = self._clock()
        lines = []
        for event in events:
            for name, _ in self._treatments.pick((event,)):
                lines += self._line("treated", name, event, now_s)
            if isinstance(event, StateFound) and event.found in ANSWERS:
                lines += self._line("found", event.found.value, event, now_s)
            if isinstance(event, ActionUndone):
                lines += self._line("taken back", event.name, event, now_s)
        for (verb, name), kind in self._kinds.items():
            if kind.untold and now_s - kind.told_s >= AGAIN_S:
                lines.append(
                    f"{verb}: {name}, {kind.untold} more like it, the last at step {kind.last_step}"
                )
                kind.untold, kind.told_s = 0, now_s
        return lines

    def _line(self, verb: str, name: str, event: JournalEvent, now_s: float) -> list[str]:
        kind = self._kinds.setdefault((verb, name), _Kind())
        kind.times += event.times
        kind.last_step = event.step
        if kind.times > TOLD_EACH:
            kind.untold += event.times
            return []
        kind.told_s = now_s
        detail, reason = getattr(event, "detail", ""), getattr(event, "reason", "")
        said = f": {detail}" if detail else ""
        why = f" ({reason})" if reason else ""
        more = "; the next ones like it are counted" if kind.times == TOLD_EACH else ""
        return [f"{verb} at step {event.step}: {name}{said}{why}{more}"]
