"""The journal: what happened in a run, one JSON object a line.

Limits how many events of a kind reach a journal: some at once, then one in so many steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.codes import Warned
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
from supervisor.records import Alert
from supervisor.settings import LimitSettings
from supervisor.storage.files.json_files import LineFile, to_line
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.journal.events import line_of, read_journal
from supervisor.storage.journal.journal_merger import JournalMerger

__all__ = ["AlertLog", "Journal", "JournalMerger", "read_journal"]


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


class Journal:
    """One rank's journal. One writer a file; its threads may share it.

    Lines that the disk refuses are kept (`KeptWrites`). Those for which there is no room either are
    counted in `lost`, and a warning says how many are missing as soon as there is. Events that
    repeat endlessly are limited by `EventBudget`.

    Attributes:
        lost: events that are missing.
        is_silent: what is written now was written before, by another process of this rank.
    """

    def __init__(
        self,
        path: Path,
        *,
        attempt: int,
        rank: int,
        limits: LimitSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`limits`: the defaults if None."""
        self.lost = 0
        self.is_silent = False
        self._budget = EventBudget(limits or LimitSettings())
        self._lines = LineFile(path)
        self._attempt = attempt
        self._rank = rank
        self._clock = clock
        self._lock = threading.RLock()

    def write(self, event: JournalEvent) -> bool:
        """Appends an event; returns whether it is, or will be, in the file (events of a kind
        are limited).

        Its time, attempt and rank are set here. NaN and infinities are written as the strings
        "nan", "inf", "-inf": ``float`` reads both.
        """
        if self.is_silent:
            return True
        with self._lock:
            left_out = self._budget.admit(event)
            if left_out is None:
                return False
            told = replace(event, left_out=left_out) if left_out else event
            return self._append(self._line(told))

    def close(self) -> None:
        with self._lock:
            for event in self._budget.rest():
                self._append(self._line(event))
            self._lines.close()

    def _append(self, line: bytes) -> bool:
        if self.lost:
            message = f"{self.lost} events before this one could not be written"
            told = self._line(WarningEvent(message=message, found=Warned.NOT_WRITTEN))
            self.lost = 0 if KEPT.append(self._lines, told) else self.lost
        if KEPT.append(self._lines, line):
            return True
        self.lost += 1
        return False

    def _line(self, event: JournalEvent) -> bytes:
        return line_of(event, clock=self._clock(), attempt=self._attempt, rank=self._rank)


class SilentJournal(Journal):
    """The journal of a rank whose findings another rank writes."""

    def __init__(self) -> None:
        """Opens nothing."""
        self.lost = 0
        self.is_silent = True

    def write(self, event: JournalEvent) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


class AlertLog:
    """Appends alerts to ``alerts.jsonl``. Ranks may share the file."""

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)

    def write(self, alert: Alert) -> None:
        """Appends `alert`."""
        KEPT.append(self._lines, to_line(alert.to_dict()))

    def close(self) -> None:
        self._lines.close()


class SilentAlertLog(AlertLog):
    """The alert log of a rank whose alerts another rank writes."""

    def __init__(self) -> None:
        """Opens nothing."""

    def write(self, alert: Alert) -> None:
        """Does nothing: the other rank writes it."""

    def close(self) -> None:
        """Nothing is open."""
