"""What a line of a journal is (CONTRACT: the run directory)."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from supervisor.masking import mask_all
from supervisor.storage.files.line_file import read_lines, to_line

EVENT_KINDS = (
    "run_started",
    "attempt_started",
    "state_found",
    "alert",
    "risk",
    "action",
    "action_undone",
    "checkpoint_saved",
    "checkpoint_stable",
    "checkpoint_rejected",
    "rollback",
    "update_skipped",
    "batch_captured",
    "hang_detected",
    "worker_exited",
    "restart",
    "resumed",
    "signal_received",
    "warning",
    "gave_up",
    "run_finished",
)


def event_line(
    kind: str, *, clock: float, attempt: int, rank: int | None, step: int | None, **fields: Any
) -> bytes:
    """Returns one line of a journal; `clock` in unix seconds.

    Raises:
        ValueError: the kind is not one of `EVENT_KINDS`, or a field has the name of a fixed one.
    """
    if kind not in EVENT_KINDS:
        raise ValueError(f"{kind!r} is no kind of event; known: {', '.join(EVENT_KINDS)}")
    if "time" in fields:
        raise ValueError("an event's time is set by its journal")
    stamp = datetime.fromtimestamp(clock, timezone.utc).isoformat(timespec="microseconds")
    fixed = {"time": stamp, "attempt": attempt, "rank": rank, "step": step, "kind": kind}
    return to_line({**fixed, **mask_all(fields)})


def read_events(path: Path) -> list[dict[str, Any]]:
    """Returns the events of a journal in order; torn, garbage and ill-typed lines are left out.

    A journal that does not exist has no events.

    Raises:
        OSError: the file is there and cannot be read.
    """
    return [event for event in read_lines(path) if _is_event(event)]


def _is_event(line: dict[str, Any]) -> bool:
    """Whether the fields that every event has are of their types."""
    return (
        isinstance(line.get("kind"), str)
        and isinstance(line.get("time", ""), str)
        and all(type(line.get(name)) in (int, type(None)) for name in ("attempt", "rank", "step"))
    )
