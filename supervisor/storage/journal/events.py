"""What the lines of a journal are, and which of them are treatments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from supervisor.codes import ActionOutcome
from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.events.run_events import RestartEvent
from supervisor.events.step_events import ActionEvent, RollbackEvent, UpdateSkipped
from supervisor.masking import mask_all
from supervisor.storage.files.json_files import read_lines, to_line


def line_of(event: JournalEvent, *, clock: float, attempt: int, rank: int | None) -> bytes:
    """Returns an event as one line of a journal, its texts masked; `clock` in unix seconds."""
    stamp = datetime.fromtimestamp(clock, timezone.utc).isoformat(timespec="microseconds")
    head = {"time": stamp, "attempt": attempt, "rank": rank, "step": event.step}
    return to_line({**head, "kind": event.kind, **mask_all(event.own_fields())})


def read_journal(path: Path) -> list[JournalEvent]:
    """Returns the events of a journal in order; torn, garbage and ill-typed lines are left out.

    A journal that does not exist has no events.

    Raises:
        OSError: the file is there and cannot be read.
    """
    return [parse_event(line) for line in read_lines(path) if _is_event(line)]


def _is_event(line: dict[str, Any]) -> bool:
    """Whether the fields that every event has are of their types."""
    return (
        isinstance(line.get("kind"), str)
        and isinstance(line.get("time", ""), str)
        and all(type(line.get(name)) in (int, type(None)) for name in ("attempt", "rank", "step"))
    )


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
