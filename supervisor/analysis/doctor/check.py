"""One line of the doctor's checklist."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, whether it is well, and the figures; if not well, what to do."""

    name: str
    ok: bool
    detail: str
