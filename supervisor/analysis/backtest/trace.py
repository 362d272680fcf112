"""Reads recorded steps: a log in one of the formats of docs/backtest.md, or a run directory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.analysis.backtest.columns import (
    KNOWN,
    OF_EPISODES,
    Cadence,
    Columns,
    StepCount,
    find_columns,
)
from supervisor.analysis.backtest.event_files import is_events, is_wandb, read_events, read_wandb
from supervisor.analysis.backtest.line_logs import is_document, read_document, read_lines
from supervisor.analysis.backtest.log_file import LogFile, Remarks, Row, is_table, read_table
from supervisor.errors import UsageError
from supervisor.ranks import FIRST_RANK
from supervisor.records import NAN, StepRecord

ROWS_AT_ONCE = 2048
"""Records of 256 observed values: 60 MB."""

OWN = frozenset(KNOWN[:5])
"""A table with these columns is ours: each of its rows is a step."""

LOOK_AHEAD = 1000
"""Rows that are read before it is decided what their columns are: a validation may come first."""

MOST_STEP = 2.0**53


@dataclass(frozen=True, slots=True)
class LogFormat:
    """A family of formats: how it is recognised, and how its rows are read."""

    recognises: Callable[[LogFile], bool]
    read: Callable[[LogFile], Iterator[Row]]
    is_text: bool = True


FORMATS = (
    LogFormat(is_wandb, read_wandb, is_text=False),
    LogFormat(is_events, lambda file: read_events([file]), is_text=False),
    LogFormat(is_document, read_document),
    LogFormat(is_table, read_table),
    LogFormat(lambda file: True, read_lines),
)
"""The first that recognises a file reads it."""

LOGS_IN_FOLDERS = ("trainer_state.json", "metrics.csv", "*.wandb", "*.tfevents.*")
"""What trainers leave in the folders that people name."""


def read_trace(
    path: Path | str, mapping: Mapping[str, str] | None = None, remarks: Remarks | None = None
) -> Iterator[StepRecord]:
    """Yields the steps of a log, or of rank 0 of a run directory, in order.

    An empty cell was not observed; ``nan`` and ``inf`` are values. Without a column of steps the
    row number counts. A row after a gap in the step numbers, of an earlier epoch, or with another
    distance from row to row counts as announced, one after a return to earlier steps as restarted
    (`Cadence`). A log with a reward is one of reinforcement learning.

    Args:
        mapping: meaning → column, where the log's names are not known.
        remarks: takes what is to be told: broken lines, what was left out.

    Raises:
        UsageError: no such log, a format that is not known, or no loss in it.
    """
    path, remarks = Path(path), remarks if remarks is not None else Remarks()
    if path.is_dir():
        from supervisor.storage.run.rundir import RunDirectory

        if RunDirectory(path).steps(FIRST_RANK).is_file():
            yield from _read_run(path)
            return
        found = _log_in(path)
        if found != path:
            remarks.said.append(f"read {found}")
        yield from _records(found, _rows(found, remarks), mapping or {}, remarks)
        return
    yield from _records(path, _rows(path, remarks), mapping or {}, remarks)


def _read_run(path: Path) -> Iterator[StepRecord]:
    from supervisor.storage.run.rundir import RunDirectory
    from supervisor.storage.steps.flight_recorder import FlightReader

    with FlightReader(RunDirectory(path).steps(FIRST_RANK)) as reader:
        last = -1
        for start in range(0, reader.rows(), ROWS_AT_ONCE):
            for record in reader.records(start, start + ROWS_AT_ONCE):
                record.restarted = record.step <= last
                last = record.step
                yield record


def _log_in(folder: Path) -> Path:
    """The one log in a folder: itself, if event files lie in it."""
    found: dict[Path, None] = {}
    for depth in ("", "*/", "*/*/", "*/*/*/"):
        for name in LOGS_IN_FOLDERS:
            for path in sorted(folder.glob(depth + name)):
                # W&B links to the latest run.
                if path.resolve() not in {other.resolve() for other in found}:
                    found[path.parent if ".tfevents." in path.name else path] = None
        if found:
            break
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise UsageError(f"{folder}: no run, and no log that is known, in it: give a log's file")
    some = ", ".join(map(str, list(found)[:10]))
    raise UsageError(f"{folder}: {len(found)} logs in it: give one of them: {some}")


def _rows(path: Path, remarks: Remarks) -> Iterator[Row]:
    if path.is_dir():
        # Their names begin with the time at which they were begun.
        return read_events([LogFile(file, remarks) for file in sorted(path.glob("*.tfevents.*"))])
    file = LogFile(path, remarks)
    if not file.head.strip():
        columns = ",".join(KNOWN[:5])
        raise UsageError(f"{path}: it is empty: give the columns {columns} and a row a step")
    kind = next(kind for kind in FORMATS if kind.recognises(file))
    if kind.is_text:
        file.refuse_binary()
    return kind.read(file)


def _records(
    path: Path, rows: Iterator[Row], mapping: Mapping[str, str], remarks: Remarks
) -> Iterator[StepRecord]:
    first = list(itertools.islice(rows, LOOK_AHEAD))
    if not first:
        return
    names = list(dict.fromkeys(name for _, cells in first for name in cells))
    numeric = {n for _, cells in first for n, v in cells.items() if _number(v) is not None}
    columns = find_columns(path, names, numeric, mapping)
    if renamed := columns.renamed():
        remarks.said.append(renamed)
    found = _values(itertools.chain(first, rows), columns, remarks)
    is_own = OWN.issubset(names)
    if not is_own:
        found = _joined(found, remarks)
    reward = columns.by_meaning.get("reward", OF_EPISODES)
    in_environment = not is_own and reward in names
    if in_environment:
        remarks.said.append(
            f"{reward} is there, so it is judged as reinforcement learning"
            " (--set in_environment=false: by its loss, too)"
        )
    cadence, count = Cadence(), StepCount()
    epoch = next((name for name in names if name.lower() == "epoch"), "epoch")
    step = before = -1
    for number, values in enumerate(found):
        step = int(values.get("step", step + 1 if "step" in columns.by_meaning else number))
        record = _record(count.update(step, values.get(epoch, NAN)), values)
        breaks = cadence.breaks_at(record.step)
        if breaks and record.step < before and not count.is_new_run:
            record.restarted = True
        elif breaks or count.is_new_run:
            record.announced = True
        record.in_environment = record.in_environment or in_environment
        before = record.step
        yield record


def _values(rows: Iterable[Row], columns: Columns, remarks: Remarks) -> Iterator[dict[str, float]]:
    """The numbers of each row by their meaning, or by their column's name."""
    meanings = columns.meanings()
    for number, cells in rows:
        values: dict[str, float] = {}
        broken = ""
        for name, cell in cells.items():
            if cell is None or cell == "":
                continue
            meaning = meanings.get(name, name)
            value = _number(cell)
            if value is None:
                if name in meanings:
                    broken = f"column {name}: {str(cell)[:40]!r} is no number"
                elif not isinstance(cell, (list, dict)):
                    remarks.texts[name] = None
            elif meaning == "step" and not (value.is_integer() and abs(value) < MOST_STEP):
                broken = f"column {name}: {cell!r} is no whole number"
            elif name in meanings or meaning not in KNOWN:
                values[meaning] = value
        if broken:
            remarks.broken_line(number, broken)
        else:
            yield values


def _joined(rows: Iterable[dict[str, float]], remarks: Remarks) -> Iterator[dict[str, float]]:
    """Puts rows of one step together where none says what another said already.

    Trainers write rate, loss and validation in rows of their own. What then holds values, but
    no loss, norm of gradients or reward, is left out.
    """
    pending: dict[str, float] | None = None
    for values in rows:
        if pending is not None and "step" in values and pending.get("step") == values["step"]:
            both = (pending.keys() & values.keys()).intersection(KNOWN) - {"step"}
            if not both:
                pending |= values
                continue
        if pending is not None and _is_step(pending, remarks):
            yield pending
        pending = values
    if pending is not None and _is_step(pending, remarks):
        yield pending


def _is_step(values: Mapping[str, float], remarks: Remarks) -> bool:
    if {"loss", "grad_norm", "reward"} & values.keys() or not values.keys() - {"step"}:
        return True
    remarks.other_rows += 1
    return False


def _record(step: int, values: Mapping[str, float]) -> StepRecord:
    batch_size = values.get("batch_size", 0.0)
    return StepRecord(
        step=step,
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
        restarted=values.get("restart", 0.0) > 0,
        observed={name: value for name, value in values.items() if name not in KNOWN},
    )


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
