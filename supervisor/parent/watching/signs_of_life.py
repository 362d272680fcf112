"""What the parent can see of a worker's progress, without asking it."""

from __future__ import annotations

import struct
from pathlib import Path

from supervisor.records import StepRecord
from supervisor.storage.steps.flight_recorder import FlightReader

_COUNTER = struct.Struct("<Q")


class StepFeed:
    """The steps that were written since the last look, in order."""

    def __init__(self, path: Path) -> None:
        """Begins after the rows that `path` holds now: they are of earlier attempts."""
        self._reader = FlightReader(path)
        self._rows = self._reader.rows()
        self._had_rows = self._rows > 0
        self.last_step: int | None = None

    @property
    def has_stepped(self) -> bool:
        """Whether this run made any step, in this attempt or an earlier one."""
        return self._had_rows or self.last_step is not None

    def take(self) -> list[StepRecord]:
        """Returns the new steps.

        Raises:
            RunDirectoryError: the flight recorder cannot be read.
        """
        if self._reader.rows() <= self._rows:
            return []
        records = self._reader.records(self._rows)
        self._rows += len(records)
        if records:
            self.last_step = records[-1].step
        return records

    def close(self) -> None:
        self._reader.close()


class LifeCounter:
    """The worker's count of signs of life; a file that is missing or short counts as unknown."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = self._read()

    def has_moved(self) -> bool:
        """Returns whether the worker counted since the last call."""
        value = self._read()
        moved = value is not None and value != self._last
        self._last = value
        return moved

    def _read(self) -> int | None:
        try:
            data = self._path.read_bytes()[: _COUNTER.size]
        except OSError:
            return None
        return int(_COUNTER.unpack(data)[0]) if len(data) == _COUNTER.size else None
