"""Sets aside what is damaged of a run's record, so that the run goes on from its checkpoints."""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from pathlib import Path

from supervisor.errors import RunDirectoryError
from supervisor.storage.files.json_files import parse_line
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.run_state import is_damaged
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import rates_path
from supervisor.storage.steps.flight_reader import FlightReader
from supervisor.storage.steps.step_rows import (
    ATTEMPT_OFFSET,
    HEADER_BYTES,
    ROW_BYTES,
    ROWS_OFFSET,
    columns_path,
    more_path,
)

_COUNT = struct.Struct("<Q")


def set_damaged_aside(rundir: RunDirectory) -> list[str]:
    """Renames a damaged ``run.json`` or journal to ``<name>.damaged``, with what is whole of it in
    its place.

    Called by the parent alone, before it writes to the journal.

    Returns:
        What was found, one sentence for each file, for a warning.

    Raises:
        OSError: the disk refuses.
    """
    found = []
    if is_damaged(rundir.run_json) and not is_damaged(rundir.run_json_copy):
        kept = _set_aside(rundir.run_json)
        write_private(rundir.run_json, rundir.run_json_copy.read_bytes(), durable=True)
        found.append(f"run.json was damaged: its copy is used, see {kept}")
    with contextlib.suppress(FileNotFoundError):
        lines = rundir.journal.read_bytes().split(b"\n")
        whole = [line for line in lines[:-1] if parse_line(line) is not None]
        lost = len(lines) - 1 - len(whole)
        if lost:
            kept = _set_aside(rundir.journal)
            write_private(rundir.journal, b"".join(line + b"\n" for line in whole), durable=True)
            found.append(f"{lost} line(s) of the journal are damaged: left out, see {kept}")
    return found


def set_steps_aside(rundir: RunDirectory) -> list[str]:
    """The same for damaged flight recorders; called by the parent while no rank lives."""
    paths = sorted((rundir.root / "steps").glob("rank_*.steps"))
    return [sentence for path in paths for sentence in _look_at_steps(path)]


def _look_at_steps(path: Path) -> list[str]:
    try:
        with FlightReader(path) as reader:
            reader.rows()
    except RunDirectoryError:
        kept = _set_aside(path)
        for beside in (more_path(path), rates_path(path), columns_path(path)):
            with contextlib.suppress(FileNotFoundError):
                _set_aside(beside)
        return [f"the flight recorder {path.name} is damaged: what it told is in {kept}"]
    with open(path, "r+b") as file:
        told, real = _rows(file.fileno())
        if told == real:
            return []
        os.pwrite(file.fileno(), _COUNT.pack(real), ROWS_OFFSET)
    return [f"the flight recorder {path.name} told of {told} steps and has {real}: mended"]


def _rows(descriptor: int) -> tuple[int, int]:
    """Returns how many rows a flight recorder says it has, and how many were written.

    A writer that was killed has written one more than it counted, at most.
    """
    head = os.pread(descriptor, _COUNT.size, ROWS_OFFSET)
    if len(head) < _COUNT.size:
        return 0, 0
    (told,) = _COUNT.unpack(head)
    room = max(0, os.fstat(descriptor).st_size - HEADER_BYTES) // ROW_BYTES

    def is_empty(row: int) -> bool:  # the attempt of one that was written is at least 1
        return not any(os.pread(descriptor, 4, HEADER_BYTES + row * ROW_BYTES + ATTEMPT_OFFSET))

    is_whole = told <= room and not (told and is_empty(told - 1))
    if is_whole and (told + 1 >= room or is_empty(told + 1)):
        return told, told
    return told, bisect.bisect_left(range(room), True, key=is_empty)


def _set_aside(path: Path) -> Path:
    """Returns the name that `path` has now."""
    number, kept = 1, path.with_name(f"{path.name}.damaged")
    while os.path.lexists(kept):
        number += 1
        kept = path.with_name(f"{path.name}.damaged-{number}")
    os.rename(path, kept)
    return kept
