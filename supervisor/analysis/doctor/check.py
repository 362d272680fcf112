"""One line of the doctor's checklist."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was checked, whether it is all right, and the figures; if not, what to do."""

    name: str
    ok: bool
    detail: str
