"""Limits how many events of a kind reach a journal: some at once, then one in so many steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor.events.event import JournalEvent
from supervisor.events.state_events import StateFound, WarningEvent
from supervisor.events.step_events import (
    ActionEvent,
    ActionUndone,
    AlertEvent,
    BatchCaptured,
    RiskEvent,
    UpdateSkipped,
)
from supervisor.settings import LimitSettings

_LIKE: Mapping[type[JournalEvent], tuple[str, ...]] = {
    AlertEvent: ("detector", "alert_kind", "severity"),
    ActionEvent: ("name", "cause", "outcome", "phase"),
    ActionUndone: ("name", "cause"),
    RiskEvent: ("cause", "alarm"),
    StateFound: ("found",),
    BatchCaptured: (),
    WarningEvent: (),
}
"""Kind → fields that are equal in similar events; events of other kinds are rare anyway."""

ALERT_GAP_STEPS = 20
"""Steps within which the same alert is not written again."""

Like = tuple[Any, ...]


@dataclass(slots=True)
class _Account:
    allowance: float
    step: int
    written: int
    left_out: int = 0
    last: JournalEvent | None = None


class EventBudget:
    """Decides whether an event is written or only counted.

    The count is written with the next event of the kind (`left_out`), or at the end with the last
    one that was left out.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._accounts: dict[Like, _Account] = {}
        self._step_without_action = -1

    def admit(self, event: JournalEvent) -> int | None:
        """Returns how many similar events were left out before this one; None: leave it out too."""
        step = event.step
        if step is None or getattr(event, "aloud", False):
            return 0
        if isinstance(event, UpdateSkipped):  # a part of the treatment that was told before it
            return None if step == self._step_without_action else 0
        if type(event) not in _LIKE:
            return 0
        account = self._account(event, step)
        gap = ALERT_GAP_STEPS if isinstance(event, AlertEvent) else 0
        if account.allowance >= 1.0 and not 0 <= step - account.written < gap:
            account.allowance -= 1.0
            account.written = step
            left_out, account.left_out, account.last = account.left_out, 0, None
            return left_out
        account.left_out += 1
        account.last = event
        if isinstance(event, ActionEvent) and not event.is_verdict:
            self._step_without_action = step
        return None

    def rest(self) -> list[JournalEvent]:
        """Returns the last left-out event of each kind; its count includes the others."""
        accounts = list(self._accounts.values())
        self._accounts.clear()
        return [replace(a.last, left_out=a.left_out - 1) for a in accounts if a.last is not None]

    def _account(self, event: JournalEvent, step: int) -> _Account:
        """Returns the account of similar events, updated for the steps since."""
        like = (event.kind, *(getattr(event, name) for name in _LIKE[type(event)]))
        limits = self._limits
        is_alert = isinstance(event, AlertEvent)
        most = limits.alerts_at_once if is_alert else limits.treatments_at_once
        account = self._accounts.get(like)
        if account is None:
            account = self._accounts[like] = _Account(most, step, step - ALERT_GAP_STEPS)
        since = max(0, step - account.step) / limits.every_steps
        account.allowance = min(most, account.allowance + since)
        account.step = step
        return account
