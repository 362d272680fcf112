"""One notice, and its JSON (docs/notifications.md)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from supervisor.masking import mask_all

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What is told; everything in it is masked when it is turned into JSON or text.

    Attributes:
        event: one of `supervisor.settings.NOTICE_EVENTS`.
        run: the run directory.
        text: one sentence.
        step: that it is about; None if there is none.
        details: further figures; JSON-able.
        left_out: event → notices that were held back since the last one, by the rate limit.
    """

    event: str
    run: Path
    text: str
    attempt: int
    step: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns the document that a webhook gets; keys are added to it, never changed."""
        return dict(
            mask_all(
                {
                    "schema": SCHEMA,
                    "event": self.event,
                    "run": self.run.name,
                    "directory": str(self.run),
                    "host": socket.gethostname(),
                    "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                    "attempt": self.attempt,
                    "step": self.step,
                    "text": self.text,
                    "details": dict(self.details),
                    "left_out": dict(self.left_out),
                }
            )
        )

    def as_line(self) -> str:
        """Returns what a person reads in a chat or a subject."""
        told = self.as_json()
        more = ", ".join(f"{count} more {event}" for event, count in told["left_out"].items())
        return f"{told['run']}: {told['text']}{f' ({more} before)' if more else ''}"
