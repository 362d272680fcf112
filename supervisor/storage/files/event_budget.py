"""How many events of a kind a journal takes: some at once, then one in so many steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.settings import LimitSettings

_LIKE: Mapping[str, tuple[str, ...]] = {
    "alert": ("detector", "alert_kind", "severity"),
    "action": ("name", "cause", "outcome", "phase"),
    "action_undone": ("name", "cause"),
    "risk": ("cause", "alarm"),
    "state_found": ("found",),
    "batch_captured": (),
    "warning": (),
}
"""Kind → the fields in which two events are alike. Other kinds are few by themselves."""

ALERT_GAP_STEPS = 20
"""The same alert within so many steps says nothing new."""

Like = tuple[Any, ...]


@dataclass(slots=True)
class _Account:
    allowance: float
    step: int
    written: int
    left_out: int = 0
    last: tuple[str, int, Mapping[str, Any]] | None = None


class EventBudget:
    """Decides about each event; every one is written or counted.

    The count of what was left out since goes with the next one that is written (`left_out`), and
    at the end with the last one of those left out.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._accounts: dict[Like, _Account] = {}
        self._step_without_action = -1

    def admit(self, kind: str, step: int | None, fields: Mapping[str, Any]) -> int | None:
        """Returns how many like it were left out since the last one; None leaves it out, too."""
        if step is None or fields.get("aloud"):
            return 0
        if kind == "update_skipped":  # a part of the treatment that was told before it
            return None if step == self._step_without_action else 0
        if kind not in _LIKE:
            return 0
        account = self._account(kind, step, fields)
        gap = ALERT_GAP_STEPS if kind == "alert" else 0
        if account.allowance >= 1.0 and not 0 <= step - account.written < gap:
            account.allowance -= 1.0
            account.written = step
            left_out, account.left_out, account.last = account.left_out, 0, None
            return left_out
        account.left_out += 1
        account.last = (kind, step, fields)
        if kind == "action" and fields.get("phase") != "verified":
            self._step_without_action = step
        return None

    def rest(self) -> list[tuple[str, int, Mapping[str, Any], int]]:
        """Returns the last event of each kind that ends with left-out ones, and how many more."""
        accounts = [account for account in self._accounts.values() if account.last is not None]
        self._accounts.clear()
        return [(*account.last, account.left_out - 1) for account in accounts if account.last]

    def _account(self, kind: str, step: int, fields: Mapping[str, Any]) -> _Account:
        """The account of events like this one, with what the steps since have brought in."""
        like = (kind, *(str(fields.get(name, "")) for name in _LIKE[kind]))
        limits = self._limits
        most = limits.alerts_at_once if kind == "alert" else limits.treatments_at_once
        account = self._accounts.get(like)
        if account is None:
            account = self._accounts[like] = _Account(most, step, step - ALERT_GAP_STEPS)
        since = max(0, step - account.step) / limits.every_steps
        account.allowance = min(most, account.allowance + since)
        account.step = step
        return account
