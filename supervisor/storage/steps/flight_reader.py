"""Reads a flight recorder, whether or not its writer has started or still lives.

The steps of all ranks as one training's, as they are judged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from supervisor.errors import RunDirectoryError
from supervisor.ranks import FIRST_RANK
from supervisor.records import StepRecord
from supervisor.storage.files.json_files import parse_json
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.step_rows import (
    ANNOUNCED,
    BEGINS_TRAINING,
    FLAGS_OFFSET,
    GRAD_SEEN,
    HEADER,
    HEADER_BYTES,
    IN_ENVIRONMENT,
    LOSS_SEEN,
    MAGIC,
    OBSERVED_SHIFT,
    OBSERVED_SLOTS,
    OTHERS_TRAINED,
    PENDING,
    ROW,
    SCALER_SKIPPED,
    STEP_DTYPE,
    VERSION,
    columns_path,
    more_chunks,
    read_more,
)

ROWS_AT_ONCE = 32768
"""Rows that are read together where many are read: 8 MB."""


class FlightReader:
    """Reads one rank's steps from a file that may grow meanwhile.

    A file that does not exist yet has no rows; it is looked for at every call.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def rows(self) -> int:
        """Returns how many complete rows there are now; see `PENDING`.

        Raises:
            RunDirectoryError: the file is not a flight recorder's, or of another version.
        """
        rows = self._stored()
        if rows:
            at = HEADER_BYTES + (rows - 1) * ROW.size + FLAGS_OFFSET
            rows -= bool(int.from_bytes(os.pread(self._fd, 4, at), "little") & PENDING)
        return rows

    def _stored(self) -> int:
        """Returns the same with rows whose numbers are still to come.

        Raises:
            RunDirectoryError: the file is not a flight recorder's, or of another version.
        """
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return 0
        rows = self._written()
        stored = max(0, os.fstat(self._fd).st_size - HEADER_BYTES) // ROW.size
        return min(rows, stored)

    def lost_rows(self) -> int:
        """Returns how many rows are missing because the file was truncated.

        Raises:
            RunDirectoryError: the file is not a flight recorder's, or of another version.
        """
        held = self._stored()
        return self._written() - held if self._fd >= 0 else 0

    def _written(self) -> int:
        head = os.pread(self._fd, HEADER.size, 0)
        if len(head) < HEADER.size:
            return 0
        magic, version, row_bytes, rows = HEADER.unpack(head)
        if magic == bytes(len(MAGIC)):
            return 0
        if magic != MAGIC or version != VERSION or row_bytes != ROW.size:
            raise RunDirectoryError(
                f"{self.path}: not a flight recorder of this version: "
                "it is damaged, or another version of training-supervisor wrote it"
            )
        return int(rows)

    def read(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Returns rows `start` to `stop` (exclusive, default all) as an array of `STEP_DTYPE`."""
        rows = self.rows()
        stop = rows if stop is None else min(stop, rows)
        start = max(start, 0)
        if start >= stop:
            return np.empty(0, STEP_DTYPE)
        data = bytearray((stop - start) * ROW.size)
        got = os.preadv(self._fd, [data], HEADER_BYTES + start * ROW.size)
        whole = got - got % ROW.size
        return np.frombuffer(data, STEP_DTYPE, count=whole // ROW.size)

    def chunks(self, stop: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (number of the first row, rows) until `stop`, in chunks of bounded size."""
        stop = self.rows() if stop is None else min(stop, self.rows())
        for start in range(0, stop, ROWS_AT_ONCE):
            yield start, self.read(start, min(start + ROWS_AT_ONCE, stop))

    def read_fields(self, fields: Sequence[str]) -> np.ndarray:
        """Returns these fields of all rows; takes less memory than whole rows."""
        dtype = np.dtype([(name, STEP_DTYPE.fields[name][0]) for name in fields])  # type: ignore[index]
        rows = self.rows()
        found = np.empty(rows, dtype)
        for start, chunk in self.chunks(rows):
            for name in fields:
                found[name][start : start + len(chunk)] = chunk[name]
        return found

    def records(self, start: int = 0, stop: int | None = None) -> list[StepRecord]:
        """Returns rows `start` to `stop` (exclusive, default all) as the records appended."""
        array = self.read(start, stop)
        names = self.names() if len(array) and np.any(array["flags"] >> OBSERVED_SHIFT) else []
        records = [_to_record(row, names) for row in ROW.iter_unpack(array.tobytes())]
        for row, name, value in self.more(start, start + len(records)):
            records[row - start].observed[name] = value  # type: ignore[index]
        return records

    def names(self) -> list[str]:
        """Returns the names of the 16 observed slots; ``observed_<slot>`` where there is none."""
        known = self.known_names()
        unknown = [f"observed_{slot}" for slot in range(len(known), OBSERVED_SLOTS)]
        return known[:OBSERVED_SLOTS] + unknown

    def more_chunks(self, stop: int) -> Iterator[np.ndarray]:
        """Yields the values beyond a row's slots, as arrays of `ENTRY_DTYPE` by row."""
        return more_chunks(self.path, stop)

    def more(self, start: int = 0, stop: int | None = None) -> list[tuple[int, str, float]]:
        """Returns (row, name, value) of the values beyond a row's slots, by row."""
        stop = self.rows() if stop is None else stop
        found = read_more(self.path, max(start, 0), stop)
        names = dict(enumerate(self.known_names())) if found else {}
        return [(row, names.get(slot, f"observed_{slot}"), value) for row, slot, value in found]

    def known_names(self) -> list[str]:
        """Returns slot → name, as far as names are known."""
        try:
            return [str(name) for name in parse_json(columns_path(self.path).read_bytes())]
        except (OSError, ValueError, TypeError, RecursionError):
            return []

    def last_step(self) -> int | None:
        """Returns the step of the newest row, None without one."""
        last = self.read(self.rows() - 1)
        return int(last["step"][-1]) if len(last) else None

    def last_time(self) -> float | None:
        """Returns when the newest row was written (unix seconds), None without one."""
        last = self.read(self.rows() - 1)
        return float(last["time"][-1]) if len(last) else None

    def close(self) -> None:
        """Closes the file; a later call opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FlightReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def read_steps(
    run: Path | str | RunDirectory,
    rank: int = FIRST_RANK,
    *,
    all_attempts: bool = False,
    fields: Sequence[str] | None = None,
) -> np.ndarray:
    """Returns the steps of a run as a structured array (see `STEP_DTYPE`).

    Args:
        run: a run directory.
        rank: whose steps.
        all_attempts: every row in the order of writing. Otherwise one row a step, the newest,
            sorted by step.
        fields: only these; `step` must be among them.

    Raises:
        RunDirectoryError: `run` is no run directory, or its steps cannot be read.
    """
    rundir = run if isinstance(run, RunDirectory) else RunDirectory(run)
    path = rundir.steps(rank)
    if not rundir.run_json.is_file() and not path.is_file():
        raise RunDirectoryError(
            f"{rundir.root}: no run directory: give the one that `supervisor run` printed"
        )
    try:
        with FlightReader(path) as reader:
            rows = reader.read() if fields is None else reader.read_fields(fields)
    except OSError as error:
        raise RunDirectoryError(
            f"{path}: cannot be read ({error.strerror}): check its owner and permissions"
        ) from error
    if all_attempts or not len(rows):
        return rows
    _, newest = np.unique(rows["step"][::-1], return_index=True)
    return rows[len(rows) - 1 - newest]


def _to_record(row: tuple[float, ...], names: list[str]) -> StepRecord:
    step, _, flags, _, loss, grad_norm, lr, scale, step_time, memory, size = row[:11]
    flags = int(flags)
    observed = row[-OBSERVED_SLOTS:]
    seen = flags >> OBSERVED_SHIFT
    return StepRecord(
        step=int(step),
        loss=loss,
        grad_norm=grad_norm,
        lr=lr,
        loss_scale=scale,
        step_time_s=step_time,
        memory_gib=memory,
        batch_size=int(size),
        loss_seen=bool(flags & LOSS_SEEN),
        grad_norm_seen=bool(flags & GRAD_SEEN),
        scaler_skipped=bool(flags & SCALER_SKIPPED),
        others_trained=bool(flags & OTHERS_TRAINED),
        begins_training=bool(flags & BEGINS_TRAINING),
        announced=bool(flags & ANNOUNCED),
        in_environment=bool(flags & IN_ENVIRONMENT),
        observed={names[i]: observed[i] for i in range(OBSERVED_SLOTS) if seen >> i & 1},
    )


_MOST_TIMES = 2**20
"""A step may be recorded so often."""


def read_group_steps(
    rundir: RunDirectory,
    ranks: int,
    *,
    all_attempts: bool = False,
    fields: Sequence[str] | None = None,
    only_common: bool = True,
) -> np.ndarray:
    """Returns what `read_steps` does, of all ranks together (see `supervisor.agreement`).

    A rank that makes no steps (a parameter server's clients) does not count.

    Args:
        rundir: of the run.
        ranks: how many.
        all_attempts, fields: as for `read_steps`; with several ranks `flags` is needed.
        only_common: a step that not all ranks have recorded is left out. Otherwise all steps of
            the first of them are there, joined of the ranks that have them.

    Raises:
        RunDirectoryError: there are none, or they cannot be read.
    """
    first = read_steps(rundir, FIRST_RANK, all_attempts=all_attempts, fields=fields)
    found = [first]
    for rank in range(1, ranks):
        try:
            found.append(read_steps(rundir, rank, all_attempts=all_attempts, fields=fields))
        except RunDirectoryError:
            if only_common:
                raise
    trained = [rows for rows in found if len(rows)]
    return (
        join_steps(trained, only_common=only_common) if len(trained) > 1 else (*trained, first)[0]
    )


def join_steps(ranks: Sequence[np.ndarray], *, only_common: bool = True) -> np.ndarray:
    """Pure: see `read_group_steps`; the order is that of the first rank's rows."""
    keys = [_numbered(rows["step"]) for rows in ranks]
    wanted = keys[0]
    if only_common:
        for others in keys[1:]:
            wanted = wanted[np.isin(wanted, others)]
    there = np.stack([np.isin(wanted, own) for own in keys])
    rows = np.stack([_picked(own, key, wanted) for own, key in zip(ranks, keys, strict=True)])
    joined: np.ndarray = rows[0].copy()
    flags = np.where(there, rows["flags"], 0)
    joined["flags"] = np.bitwise_or.reduce(flags, axis=0)
    names = joined.dtype.names or ()
    with np.errstate(invalid="ignore", divide="ignore"):
        saw = (flags & LOSS_SEEN) > 0
        joined["loss"] = np.where(saw, rows["loss"], 0.0).sum(axis=0) / saw.sum(axis=0)
        if "grad_norm" in names:
            saw = (flags & GRAD_SEEN) > 0
            norms = np.where(saw, rows["grad_norm"], -np.inf).max(axis=0)
            joined["grad_norm"] = np.where(saw.any(axis=0), norms, np.nan)
    if "batch_size" in names:
        joined["batch_size"] = np.where(there, rows["batch_size"], 0).sum(axis=0)
    for name in {"step_time_s", "memory_gib"}.intersection(names):
        joined[name] = np.fmax.reduce(np.where(there, rows[name], np.nan), axis=0)
    return joined


def _numbered(steps: np.ndarray) -> np.ndarray:
    """A number for each row: a step that a rank has made again comes a second time."""
    order = np.argsort(steps, kind="stable")
    _, first, counts = np.unique(steps[order], return_index=True, return_counts=True)
    times = np.empty(len(steps), np.int64)
    times[order] = np.arange(len(steps)) - np.repeat(first, counts)
    numbered: np.ndarray = steps.astype(np.int64) * _MOST_TIMES + times
    return numbered


def _picked(rows: np.ndarray, keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The rows with these numbers, and any row where there is none."""
    if not len(rows):
        return np.zeros(len(wanted), rows.dtype)
    order = np.argsort(keys)
    at = np.searchsorted(keys[order], wanted)
    picked: np.ndarray = rows[order[np.minimum(at, len(rows) - 1)]]
    return picked
