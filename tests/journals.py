"""Events by kind and fields, and a journal's lines as a user's own script reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from supervisor.events.event import JournalEvent
from supervisor.events.parsing import KINDS, parse_event
from supervisor.storage.files.json_files import read_lines


def event(kind: str, **fields: Any) -> JournalEvent:
    """An event of which only some fields matter."""
    assert kind in KINDS
    return parse_event({"kind": kind, **fields})


def read_raw(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal, or none."""
    return [line for line in read_lines(path) if "kind" in line]
