"""A report of a long run reads it in parts and keeps what a picture needs, with every extreme."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from supervisor.records import StepRecord
from supervisor.report.facts import observed_values as observed_courses
from supervisor.report.facts.observed_values import BUCKETS, read_courses, sum_up
from supervisor.report.facts.run_data import load_material
from supervisor.report.facts.step_table import FIELDS, build_step_table, thin_marks
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps import flight_reader
from supervisor.storage.steps import step_rows as more_values
from supervisor.storage.steps.flight_recorder import FlightReader, FlightRecorder, read_steps
from supervisor.storage.steps.step_rows import ROW_BYTES
from tests.report.synthetic_run import SyntheticRun

NAMES = 40


def record_run(root: Path, steps: int, special: dict[int, float] | None = None) -> RunDirectory:
    run = SyntheticRun(root)
    recorder = FlightRecorder(run.rundir.steps(0), 1)
    for step in range(steps):
        value = (special or {}).get(step, math.sin(step))
        observed = {f"value_{name}": value + name for name in range(NAMES)}
        record = StepRecord(step=step, loss=1.0, loss_seen=True, observed=observed)
        recorder.append(record, time=float(step))
    recorder.close()
    return run.rundir


def test_every_spike_and_every_nan_of_a_thinned_course_stays(tmp_path: Path) -> None:
    special = {17: 50.0, 2001: -70.0, 3003: math.nan, 4999: math.inf, 4000: 49.0}
    run = record_run(tmp_path, 5000, special)

    courses = read_courses(run.root)

    assert len(courses) == NAMES
    for number, name in ((0, "value_0"), (NAMES - 1, f"value_{NAMES - 1}")):
        course = courses[name]
        points = dict(zip(course.steps.tolist(), course.values.tolist(), strict=True))
        assert len(points) <= 2 * BUCKETS + 2  # and both ends
        assert points[17.0] == 50.0 + number
        assert points[2001.0] == -70.0 + number
        assert points[4000.0] == 49.0 + number
        assert course.nonfinite.tolist() == [3003.0, 4999.0]
        assert course.count == 4998


def test_a_thinned_course_sums_up_to_the_same_figures(tmp_path: Path) -> None:
    run = record_run(tmp_path, 4000)
    full = read_steps(run)["observed"][:, 3]

    value = next(v for v in sum_up(read_courses(run.root)) if v.name == "value_3")

    assert (value.count, value.first, value.last) == (4000, full[0], full[-1])
    assert (value.lowest, value.highest) == (full.min(), full.max())


def test_the_course_of_a_short_run_has_every_value(tmp_path: Path) -> None:
    run = record_run(tmp_path, 2 * BUCKETS)

    course = read_courses(run.root)["value_20"]

    assert len(course.steps) == 2 * BUCKETS
    assert course.values[5] == pytest.approx(math.sin(5) + 20)


def test_courses_need_memory_for_a_part_of_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record_run(tmp_path, 10_000)
    monkeypatch.setattr(flight_reader, "ROWS_AT_ONCE", 500)
    monkeypatch.setattr(more_values, "ENTRIES_AT_ONCE", 5000)
    monkeypatch.setattr(observed_courses, "BUCKETS", 50)
    whole = 10_000 * (ROW_BYTES + (NAMES - 16) * more_values.ENTRY.size)
    read_courses(run.root)

    tracemalloc.start()
    read_courses(run.root)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < whole / 8


def test_the_steps_of_a_report_are_read_without_their_observed_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record_run(tmp_path, 1200)
    monkeypatch.setattr(flight_reader, "ROWS_AT_ONCE", 100)
    sizes: list[int] = []
    real = FlightReader.read

    def read(self: FlightReader, start: int = 0, stop: int | None = None) -> np.ndarray:
        rows = real(self, start, stop)
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(FlightReader, "read", read)

    run_data = load_material(run.root)

    assert max(sizes) <= 100
    assert len(run_data.steps) == 1200
    monkeypatch.undo()
    fields = read_steps(run, all_attempts=True, fields=FIELDS)
    assert fields.dtype.itemsize < ROW_BYTES / 2
    for name in FIELDS:
        assert np.array_equal(fields[name], read_steps(run)[name], equal_nan=True)


def test_a_choice_of_rows_copies_no_column() -> None:
    rows = np.zeros(6, dtype=[("step", np.int64), ("attempt", np.int64), ("loss", np.float64)])
    rows["step"] = [0, 1, 2, 1, 2, 3]
    rows["attempt"] = [1, 1, 1, 2, 2, 2]
    rows["loss"] = [5, 6, 7, 8, 9, 10]
    table = build_step_table(rows)

    second = table.of_attempt(2)

    assert np.shares_memory(second.loss, table.loss)
    assert second.loss.tolist() == [8, 9, 10]
    assert second.take(second.step >= 2).loss.tolist() == [9, 10]
    assert second.take(second.step > 9).loss.tolist() == []
    assert table.final.step.tolist() == [0, 1, 2, 3]
    assert table.final.loss.tolist() == [5, 8, 9, 10]
    assert table.final is table.final


def test_marks_that_lie_on_each_other_are_drawn_once() -> None:
    marks = thin_marks(np.arange(100_000, dtype=np.float64))

    assert len(marks) <= 900
    assert marks[0] == 0
    assert thin_marks(np.array([3.0, 5.0])).tolist() == [3.0, 5.0]
