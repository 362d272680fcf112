"""What a line of a journal is."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.masking import mask_all
from supervisor.storage.files.line_file import read_lines, to_line


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
