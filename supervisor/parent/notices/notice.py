"""One notice, and its JSON (docs/notifications.md).

Addresses and passwords that a config only points to.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from supervisor.errors import ConfigError
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


IN_ENVIRONMENT, IN_FILE = "env:", "file:"


def points_to_secret(text: str) -> bool:
    """Whether a setting says where a secret is, instead of being one."""
    return text.startswith((IN_ENVIRONMENT, IN_FILE))


def read_secret(where: str, text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns what ``env:NAME`` or ``file:PATH`` points to; any other text as it is.

    Args:
        where: the setting, for the error.

    Raises:
        ConfigError: there is nothing.
    """
    if text.startswith(IN_ENVIRONMENT):
        name = text.removeprefix(IN_ENVIRONMENT)
        found = environment.get(name, "").strip()
        if not found:
            raise ConfigError(f"{where}: {text}: {name} is not set: export it, or leave this out")
        return found
    if text.startswith(IN_FILE):
        path = Path(text.removeprefix(IN_FILE)).expanduser()
        try:
            found = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a text"
            raise ConfigError(f"{where}: {path}: {why}: give a file with one line") from error
        if not found:
            raise ConfigError(f"{where}: {path}: is empty: give a file with one line")
        return found
    return text
