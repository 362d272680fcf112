"""The journal: what happened in a run, one JSON object a line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from supervisor.codes import Warned
from supervisor.events.event import JournalEvent
from supervisor.events.state_events import WarningEvent
from supervisor.records import Alert
from supervisor.settings import LimitSettings
from supervisor.storage.files.event_budget import EventBudget
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.files.line_file import LineFile, to_line
from supervisor.storage.journal.events import line_of, read_journal
from supervisor.storage.journal.journal_merger import JournalMerger

__all__ = ["AlertLog", "Journal", "JournalMerger", "read_journal"]


class Journal:
    """One rank's journal. One writer a file; its threads may share it.

    Lines that the disk refuses are kept (`KeptWrites`). Those for which there is no room either are
    counted in `lost`, and a warning says how many are missing as soon as there is. Events that
    repeat endlessly are limited by `EventBudget`.
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
