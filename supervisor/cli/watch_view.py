"""What one frame of `supervisor watch` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.records import StepRecord

HISTORY = 240
"""Steps that the curves reach back."""
LINES = 6
"""Newest events shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchView:
    """One frame.

    Attributes:
        title: which run.
        state: as in run.json.
        attempt: 0 before the first.
        record: the newest step; None before the first.
        risk: of the newest step that was judged; NaN before.
        losses, risks: curves, oldest first.
        events: newest last: (step, kind, sentence).
        observed: the newest value of everything that the script observes.
        ended: there will be no further frame.
    """

    title: str
    state: str
    attempt: int = 0
    record: StepRecord | None = None
    risk: float = float("nan")
    losses: Sequence[float] = ()
    risks: Sequence[float] = ()
    events: Sequence[tuple[int | None, str, str]] = ()
    observed: Mapping[str, float] = field(default_factory=dict)
    ended: bool = False
