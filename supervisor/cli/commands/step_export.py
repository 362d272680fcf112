"""Writes recorded steps for other programs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from supervisor.errors import UsageError
from supervisor.records import StepRecord
from supervisor.step_logs.step_log import TensorboardLog
from supervisor.storage.files.private_files import open_private
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import read_rates
from supervisor.storage.steps.flight_reader import FlightReader
from supervisor.storage.steps.step_rows import (
    COLUMNS,
    MARKS,
    OBSERVED_SHIFT,
    OBSERVED_SLOTS,
    step_values,
)

ROWS_AT_ONCE = 2048
"""Records of 256 observed values: 60 MB."""


class NewestSteps:
    """The records of a run in order, one per step (the newest), read piece by piece.

    Args:
        rundir, rank: whose steps.

    Attributes:
        count: steps.
        columns: names in addition to `COLUMNS`: marks and observed values of some step.

    Raises:
        UsageError: this rank has recorded nothing.
    """

    def __init__(self, rundir: RunDirectory, rank: int) -> None:
        self._path = rundir.steps(rank)
        with FlightReader(self._path) as reader:
            steps = reader.read_fields(("step", "flags"))
            self._names = reader.known_names()
            flags = int(np.bitwise_or.reduce(steps["flags"])) if len(steps) else 0
            seen = self._observed_names(reader, flags, len(steps))
        if not len(steps):
            raise UsageError(
                f"{rundir.root}: rank {rank} has recorded no step: wait, or try --rank"
            )
        _, newest = np.unique(steps["step"][::-1], return_index=True)
        self._rows = len(steps) - 1 - newest
        self.count = len(self._rows)
        marks = [name for name, flag in MARKS.items() if flags & flag]
        self.columns = (*marks, *sorted(seen))

    def __iter__(self) -> Iterator[tuple[int, float, StepRecord]]:
        """Yields (row, unix time, record)."""
        with FlightReader(self._path) as reader:
            for part in np.split(self._rows, np.flatnonzero(np.diff(self._rows) != 1) + 1):
                first, stop = int(part[0]), int(part[-1]) + 1
                for start in range(first, stop, ROWS_AT_ONCE):
                    end = min(start + ROWS_AT_ONCE, stop)
                    times = reader.read(start, end)["time"].tolist()
                    records = reader.records(start, end)
                    yield from zip(range(start, end), times, records, strict=True)

    @staticmethod
    def _observed_names(reader: FlightReader, flags: int, rows: int) -> set[str]:
        """Names with a value in some step."""
        slots = {slot for slot in range(OBSERVED_SLOTS) if flags >> (OBSERVED_SHIFT + slot) & 1}
        for chunk in reader.more_chunks(rows):
            slots.update(np.unique(chunk["slot"]).tolist())
        known = dict(enumerate(reader.known_names()))
        return {known.get(slot, f"observed_{slot}") for slot in slots}


def write_csv(rundir: RunDirectory, rank: int, path: Path) -> int:
    """Writes the steps in the form that `supervisor backtest` reads; returns how many.

    An empty cell was not observed; ``nan`` and ``inf`` are values. If a treatment changed a rate,
    the column ``applied_lr`` has the rates that were used.
    """
    steps = NewestSteps(rundir, rank)
    factors = read_rates(rundir.steps(rank))
    columns = (*COLUMNS, *(["applied_lr"] if factors else []), *steps.columns)
    part = path.with_name(path.name + ".part")
    with open_private(part, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *columns])
        for row, _, record in steps:
            values = dict(step_values(record))
            if factors:
                values["applied_lr"] = record.lr * factors.get(row, 1.0)
            cells = [values.get(name, "") for name in columns]
            writer.writerow([record.step, *(repr(c) if isinstance(c, float) else c for c in cells)])
    part.replace(path)
    return steps.count


def write_tensorboard(rundir: RunDirectory, rank: int, folder: Path) -> int:
    """Writes the steps as TensorBoard scalars; returns how many steps.

    Raises:
        UsageError: TensorBoard is not installed.
    """
    steps = NewestSteps(rundir, rank)
    with TensorboardLog(folder) as log:
        for count, (row, time_s, record) in enumerate(steps):
            if not count:
                log.begin_again(record.step)
            log.write(record.step, time_s, step_values(record), row=row)
    return steps.count
