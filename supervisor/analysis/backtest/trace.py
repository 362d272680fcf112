"""Reads recorded steps: a CSV of the contract's columns, or a run directory."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from supervisor.analysis.backtest.cadence import Cadence
from supervisor.errors import UsageError
from supervisor.ranks import LEAD_RANK
from supervisor.records import NAN, StepRecord

KNOWN = (
    *("step", "loss", "grad_norm", "lr", "loss_scale", "step_time_s", "batch_size", "memory_gib"),
    "others_trained",
    "begins_training",
    "announced",
    "in_environment",
)
"""Columns with a meaning of their own; every other column becomes an observed value."""

ROWS_AT_ONCE = 2048
"""Records of 256 observed values: 60 MB."""


def read_trace(path: Path | str) -> Iterator[StepRecord]:
    """Yields the steps of a CSV file, or of rank 0 of a run directory, in order.

    In a CSV an empty cell was not observed; ``nan`` and ``inf`` are values. Without a column
    ``step`` the row number counts. A row after a gap in the step numbers, after a return to earlier
    ones, or with another distance from row to row counts as announced (`Cadence`).

    Raises:
        UsageError: no such file, no usable column, or a cell that is no number (with its line).
    """
    path = Path(path)
    if path.is_dir():
        yield from _read_run(path)
        return
    if not path.is_file():
        raise UsageError(f"{path}: no such file: give a CSV file or a run directory")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            yield from _read_csv(path, file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a CSV file ({error}): give text with commas") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error}): check its permissions") from error


def _read_run(path: Path) -> Iterator[StepRecord]:
    from supervisor.storage.run.rundir import RunDirectory
    from supervisor.storage.steps.flight_recorder import FlightReader

    steps = RunDirectory(path).steps(LEAD_RANK)
    if not steps.is_file():
        raise UsageError(f"{path}: no {steps.name}: give a CSV or a directory of `supervisor run`")
    with FlightReader(steps) as reader:
        for start in range(0, reader.rows(), ROWS_AT_ONCE):
            yield from reader.records(start, start + ROWS_AT_ONCE)


def _read_csv(path: Path, file: Iterator[str]) -> Iterator[StepRecord]:
    rows = csv.reader(file)
    header = [name.strip() for name in next(rows, [])]
    if not header:
        columns = ",".join(KNOWN[:5])
        raise UsageError(f"{path}: it is empty: give the columns {columns} and a row a step")
    others = [mark for mark in ";\t|" if mark in header[0]]
    if len(header) == 1 and others:
        raise UsageError(f"{path}: line 1: columns are separated by {others[0]!r}: use commas")
    if "loss" not in header and "grad_norm" not in header:
        raise UsageError(
            f"{path}: line 1: no column `loss` or `grad_norm` in {header}: "
            f"name the columns {','.join(KNOWN[:5])}"
        )
    twice = {name for name in header if name and header.count(name) > 1}
    if twice:
        raise UsageError(f"{path}: line 1: column {sorted(twice)[0]!r} twice: keep one of them")
    number = 0
    cadence = Cadence()
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        where = f"{path}: line {rows.line_num}"
        if len(row) > len(header):
            raise UsageError(
                f"{where}: {len(row)} cells under {len(header)} columns: quote cells with commas"
            )
        cells = {name: cell.strip() for name, cell in zip(header, row, strict=False) if name}
        record = _record(where, cells, number)
        if cadence.breaks_at(record.step):
            record.announced = True
        yield record
        number += 1


def _record(where: str, cells: dict[str, str], number: int) -> StepRecord:
    values = {name: _number(where, name, cell) for name, cell in cells.items() if cell}
    step = values.get("step", float(number))
    if not math.isfinite(step) or step != int(step):
        raise UsageError(f"{where}, column step: {cells['step']!r}: give a whole number")
    batch_size = values.get("batch_size", 0.0)
    return StepRecord(
        step=int(step),
        loss=values.get("loss", NAN),
        grad_norm=values.get("grad_norm", NAN),
        lr=values.get("lr", NAN),
        loss_scale=values.get("loss_scale", NAN),
        step_time_s=values.get("step_time_s", NAN),
        batch_size=int(batch_size) if math.isfinite(batch_size) else 0,
        memory_gib=values.get("memory_gib", NAN),
        loss_seen="loss" in values,
        grad_norm_seen="grad_norm" in values,
        others_trained=values.get("others_trained", 0.0) > 0,
        begins_training=values.get("begins_training", 0.0) > 0,
        announced=values.get("announced", 0.0) > 0,
        in_environment=values.get("in_environment", 0.0) > 0,
        observed={name: value for name, value in values.items() if name not in KNOWN},
    )


def _number(where: str, column: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UsageError(
            f"{where}, column {column}: {cell!r}: give a number, nan, inf, or leave it empty"
        ) from None
