"""The factors by which updates' learning rates were multiplied, in a file beside the recorder's.

One entry for each update whose rate was not the script's own: row (u64), factor (f64), by row.

How long each rank took for what it does alone in a step, in a file beside the flight recorder's.

One entry for each window of steps: its first step (u64), the median in seconds (f64).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from supervisor.errors import RunDirectoryError
from supervisor.storage.steps.flight_reader import FlightReader

ENTRY = struct.Struct("<Qd")
_ROWS_AT_ONCE = 65536
"""Rows that are read together: 17 MB."""
WINDOW_STEPS = 64


def rates_path(path: Path) -> Path:
    """Where the factors of the flight recorder at `path` are."""
    return path.with_name(path.name + ".rates")


def own_times_path(path: Path) -> Path:
    """Where the times of the flight recorder at `path` are."""
    return path.with_name(path.name + ".own")


class Entries:
    """Appends entries; the file is made with the first of them. One writer a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def append(self, number: int, value: float) -> None:
        """Stores one entry; on a full disk it is dropped."""
        with contextlib.suppress(OSError):
            if self._fd < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o600)
                size = os.fstat(self._fd).st_size
                os.ftruncate(self._fd, size - size % ENTRY.size)
            os.write(self._fd, ENTRY.pack(number, value))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class AppliedRates(Entries):
    """Of the flight recorder at `path`: row, and its factor."""

    def __init__(self, path: Path) -> None:
        super().__init__(rates_path(path))


class OwnTimes(Entries):
    """Of the flight recorder at `path`: a window's first step, and its median in seconds."""

    def __init__(self, path: Path) -> None:
        super().__init__(own_times_path(path))


def read_rates(path: Path) -> dict[int, float]:
    """Returns row → factor of the flight recorder at `path`; empty if no rate was changed.

    Raises:
        OSError: the file is there and cannot be read.
    """
    return _read(rates_path(path))


def read_own_times(path: Path) -> dict[int, float]:
    """Returns first step → median of the flight recorder at `path`, in the order of steps; of a
    window that was repeated, the last time. Empty where nothing was written.

    Raises:
        OSError: the file is there and cannot be read.
    """
    return dict(sorted(_read(own_times_path(path)).items()))


def _read(path: Path) -> dict[int, float]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    return dict(ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY.size]))


def describe_rates(path: Path) -> str:
    """Returns ``learning rate held at x0.1 for 248 of 400 steps``; empty if it was the script's.

    Of a step that was repeated, the last time counts.
    """
    with contextlib.suppress(OSError, RunDirectoryError):
        rates = read_rates(path)
        if not rates:
            return ""
        factors: dict[int, float] = {}
        seen = 0
        for row, step in _steps(path):
            seen = max(seen, step + 1)
            factor = rates.get(row, 1.0)
            if factor != 1.0:
                factors[step] = factor
            else:
                factors.pop(step, None)
        if factors:
            low, high = (
                f"x{value:.2g}" for value in (min(factors.values()), max(factors.values()))
            )
            how = f"held at {low}" if low == high else f"changed by {low} to {high}"
            return f"learning rate {how} for {len(factors)} of {seen} steps"
    return ""


def _steps(path: Path) -> Iterator[tuple[int, int]]:
    """Yields row and step, a part of the file at a time."""
    with FlightReader(path) as reader:
        for start in range(0, reader.rows(), _ROWS_AT_ONCE):
            steps = reader.read(start, start + _ROWS_AT_ONCE)["step"].tolist()
            yield from enumerate(steps, start)
