"""Says which events of a journal are treatments, for terminal, report and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from supervisor.codes import ActionOutcome
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import RestartEvent
from supervisor.events.step_events import ActionEvent, RollbackEvent, UpdateSkipped

PROTECTIVE = frozenset({"checkpoint", "snapshot", "trial_step"})
"""Actions that change nothing about the run."""
NOT_DONE = frozenset({ActionOutcome.REFUSED, ActionOutcome.WOULD_HAVE})


class JournalTreatments:
    """Picks the treatments out of a journal's events, each once."""

    def __init__(self) -> None:
        self._acted: set[tuple[str, int | None, int | None]] = set()

    def pick(self, events: Iterable[JournalEvent]) -> list[tuple[str, JournalEvent]]:
        """Returns name and event of those among the next events that changed the training.

        Restarts are left out: they are counted by themselves, as attempts.
        """
        named = [(treatment_of(event), event) for event in events]
        told = [(name, event) for name, event in named if name]
        self._acted |= {_place(n, event) for n, event in told if isinstance(event, ActionEvent)}
        return [
            (name, event)
            for name, event in told
            if (isinstance(event, ActionEvent) or _place(name, event) not in self._acted)
            and name != "restart"
            and is_done(name, event)
        ]


def treatment_of(event: JournalEvent) -> str:
    """Returns the treatment that an event tells of; empty if it tells of none.

    Events of other kinds than `action` tell of one, too, unless such a line told of it before.
    """
    match event:
        case ActionEvent(is_verdict=False, name=name):
            return name if name.isidentifier() else "unnamed"
        case RollbackEvent(name=name):
            return name if name.isidentifier() else "rollback"
        case UpdateSkipped():
            return "skip_update"
        case RestartEvent():
            return "restart"
    return ""


def _place(name: str, event: JournalEvent) -> tuple[str, int | None, int | None]:
    return name, event.attempt, event.step


def is_done(name: str, event: JournalEvent) -> bool:
    """Says whether an event that tells of the treatment `name` tells that it was made."""
    if name in PROTECTIVE:
        return False
    if not isinstance(event, ActionEvent):
        return True
    return event.outcome not in NOT_DONE and not (event.applied is False and not event.outcome)


def count_treatments(events: Iterable[JournalEvent]) -> Counter[str]:
    """Returns how often each treatment was made in a whole journal."""
    counted: Counter[str] = Counter()
    for name, event in JournalTreatments().pick(events):
        counted[name] += event.times
    return counted
