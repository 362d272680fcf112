"""Recorded steps for other programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

from supervisor.errors import UsageError
from supervisor.records import StepRecord
from supervisor.storage.files.private_files import make_private, write_private
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader

COLUMNS = ("loss", "grad_norm", "lr", "loss_scale", "step_time_s", "batch_size", "memory_gib")
MARKS = ("others_trained", "begins_training", "announced", "in_environment")
"""Columns that are there only if some step has them."""


def newest_rows(rundir: RunDirectory, rank: int) -> list[tuple[float, StepRecord]]:
    """Returns (unix time, record), one a step, the newest where a step was repeated, in order.

    Raises:
        UsageError: this rank has recorded nothing.
    """
    with FlightReader(rundir.steps(rank)) as reader:
        records = reader.records()
        times = reader.read(stop=len(records))["time"].tolist()
    newest = {record.step: (time_s, record) for time_s, record in zip(times, records, strict=True)}
    if not newest:
        raise UsageError(f"{rundir.root}: rank {rank} has recorded no step: wait, or try --rank")
    return [newest[step] for step in sorted(newest)]


def write_csv(rundir: RunDirectory, rank: int, path: Path) -> int:
    """Writes the steps in the form that `supervisor backtest` reads; returns how many.

    An empty cell was not observed; ``nan`` and ``inf`` are values.
    """
    records = [record for _, record in newest_rows(rundir, rank)]
    observed = sorted({name for record in records for name in record.observed})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns: tuple[str, ...] = COLUMNS
    columns += tuple(name for name in MARKS if any(getattr(r, name) for r in records))
    writer.writerow(["step", *columns, *observed])
    for record in records:
        values = _values(record)
        cells = [values.get(name, "") for name in (*columns, *observed)]
        writer.writerow([record.step, *(repr(c) if isinstance(c, float) else c for c in cells)])
    write_private(path, text.getvalue())
    return len(records)


def write_tensorboard(rundir: RunDirectory, rank: int, folder: Path) -> int:
    """Writes the steps as TensorBoard scalars; returns how many steps.

    Raises:
        UsageError: TensorBoard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise UsageError(
            "export --to tensorboard: TensorBoard is missing: "
            "pip install 'training-supervisor[tensorboard]', or use --to csv"
        ) from error
    rows = newest_rows(rundir, rank)
    make_private(folder)
    writer = EventFileWriter(str(folder))
    for time_s, record in rows:
        values = [Summary.Value(tag=n, simple_value=v) for n, v in _values(record).items()]
        writer.add_event(Event(wall_time=time_s, step=record.step, summary=Summary(value=values)))
    writer.close()
    return len(rows)


def _values(record: StepRecord) -> Mapping[str, float]:
    """What was observed; a value that was seen and was NaN is among it."""
    values = {name: float(getattr(record, name)) for name in COLUMNS}
    seen = {"loss": record.loss_seen, "grad_norm": record.grad_norm_seen}
    known = {name: value for name, value in values.items() if seen.get(name, not math.isnan(value))}
    if record.batch_size:
        known["batch_size"] = record.batch_size
    else:
        known.pop("batch_size")
    known |= {name: 1 for name in MARKS if getattr(record, name)}
    return {**known, **record.observed}
