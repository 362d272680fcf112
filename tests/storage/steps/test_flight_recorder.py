from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.errors import RunDirectoryError
from supervisor.records import StepRecord
from supervisor.storage.files.kept_writes import KEPT, KeptWrite
from supervisor.storage.steps import flight_recorder
from supervisor.storage.steps.flight_recorder import (
    GRAD_SEEN,
    LOSS_SEEN,
    PENDING,
    REPLAYED,
    STEP_DTYPE,
    UPDATE_SKIPPED,
    FlightReader,
    FlightRecorder,
    read_steps,
)
from supervisor.storage.steps.step_rows import ROW, MoreValues, columns_path

figures = st.floats(width=64)
records = st.builds(
    StepRecord,
    step=st.integers(-(2**63), 2**63 - 1),
    loss=figures,
    grad_norm=figures,
    lr=figures,
    loss_scale=figures,
    step_time_s=figures,
    batch_size=st.integers(0, 2**40),
    memory_gib=figures,
    loss_seen=st.booleans(),
    grad_norm_seen=st.booleans(),
    scaler_skipped=st.booleans(),
    others_trained=st.booleans(),
    begins_training=st.booleans(),
    announced=st.booleans(),
    in_environment=st.booleans(),
    observed=st.dictionaries(st.sampled_from(list("abcdefgh")), figures, max_size=4),
)


def filled(path: Path, steps: range, attempt: int = 1) -> None:
    recorder = FlightRecorder(path, attempt)
    for step in steps:
        recorder.append(StepRecord(step=step, loss=step / 8, loss_seen=True), time=1e9 + step)
    recorder.close()


def test_the_row_of_struct_is_the_row_of_numpy() -> None:
    assert ROW.size == STEP_DTYPE.itemsize


@settings(max_examples=40, deadline=None)
@given(kept=st.lists(records, max_size=6))
def test_records_come_back_as_they_were(
    kept: list[StepRecord], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "steps" / "rank_0.steps"
    recorder = FlightRecorder(path, 1)
    for record in kept:
        recorder.append(record, time=1.0)
    recorder.close()

    with FlightReader(path) as reader:
        found = reader.records()

    # Observed values come back in the order of their slots.
    for record, other in zip(kept, found, strict=True):
        assert dict(other.observed).keys() == record.observed.keys()
        for name, value in record.observed.items():
            assert repr(other.observed[name]) == repr(value)
        plain = {name: value for name, value in _fields(record).items() if name != "observed"}
        assert {n: v for n, v in _fields(other).items() if n != "observed"} == plain


def _fields(record: StepRecord) -> dict[str, str]:
    return {name: repr(getattr(record, name)) for name in StepRecord.__slots__}


def test_a_file_that_does_not_exist_yet_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    with FlightReader(path) as reader:
        nothing = (reader.rows(), len(reader.read()), reader.last_step(), reader.last_time())

        filled(path, range(3))

        assert nothing == (0, 0, None, None)
        assert (reader.rows(), reader.last_step(), reader.last_time()) == (3, 2, 1e9 + 2)


def test_an_empty_file_has_no_rows_and_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    path.write_bytes(b"")
    with FlightReader(path) as reader:
        before = reader.rows()

        filled(path, range(2))

        assert (before, reader.rows()) == (0, 2)


def test_later_attempts_append_to_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "steps" / "rank_0.steps"
    filled(path, range(5), attempt=1)
    filled(path, range(3, 8), attempt=2)

    everything = read_steps(tmp_path, all_attempts=True)
    newest = read_steps(tmp_path)

    assert everything["step"].tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]
    assert newest["step"].tolist() == list(range(8))
    assert newest["attempt"].tolist() == [1, 1, 1, 2, 2, 2, 2, 2]


def test_the_file_grows_past_a_chunk_under_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "CHUNK_ROWS", 16)
    path = tmp_path / "rank_0.steps"
    recorder = FlightRecorder(path, 1)
    with FlightReader(path) as reader:
        for step in range(100):
            row = recorder.append(StepRecord(step=step, loss=1.5 * step), time=float(step))
            assert (row, reader.rows(), reader.last_step()) == (step, step + 1, step)

        assert np.array_equal(reader.read()["loss"], 1.5 * np.arange(100))
        assert reader.read(98)["step"].tolist() == [98, 99]
        assert reader.read(10, 12)["step"].tolist() == [10, 11]
        assert len(reader.read(100)) == 0
    recorder.close()
    recorder.close()


def test_a_mark_adds_flags_and_sets_the_risk_in_place(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    recorder = FlightRecorder(path, 1)
    row = recorder.append(
        StepRecord(step=1, loss_seen=True, observed={"reward": 2.0}), time=0.0, flags=REPLAYED
    )
    recorder.append(StepRecord(step=2, grad_norm_seen=True), time=0.0, risk=0.25)

    recorder.mark(row, flags=UPDATE_SKIPPED)
    recorder.mark_risk((row,), 0.75)

    with FlightReader(path) as reader:
        rows, found = reader.read(), reader.records()
    assert rows["risk"].tolist() == [0.75, 0.25]
    assert rows["flags"][0] & 0xFFFF == LOSS_SEEN | REPLAYED | UPDATE_SKIPPED
    assert rows["flags"][1] == GRAD_SEEN
    assert [dict(record.observed) for record in found] == [{"reward": 2.0}, {}]
    with pytest.raises(IndexError):
        recorder.mark(2, flags=UPDATE_SKIPPED)
    with pytest.raises(IndexError):
        recorder.mark_risk((1, 2), 0.5)
    recorder.close()


def test_observed_names_keep_their_slots_and_the_seventeenth_has_room_too(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    recorder = FlightRecorder(path, 1)
    recorder.append(StepRecord(step=0, observed={"b": 1.0, "a": math.nan}), time=0.0)
    recorder.close()
    recorder = FlightRecorder(path, 2)
    many = {f"n{number}": float(number) for number in range(20)}
    recorder.append(StepRecord(step=1, observed={"a": 3.0, **many}), time=0.0)
    recorder.append(StepRecord(step=2), time=0.0)
    recorder.append(StepRecord(step=3, observed={"n19": math.inf}), time=0.0)
    recorder.close()

    with FlightReader(path) as reader:
        first, second, third, fourth = reader.records()
        last = reader.records(3)

    assert list(first.observed) == ["b", "a"]
    assert math.isnan(first.observed["a"])
    assert second.observed == {"a": 3.0, **many}
    assert third.observed == {}
    assert fourth.observed == {"n19": math.inf} == last[0].observed


def test_a_value_without_room_is_told_once_and_those_of_a_row_that_never_came_are_dropped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rank_0.steps"
    told: list[str] = []
    recorder = FlightRecorder(path, 1, on_left_out=told.append)
    values = {f"n{number}": float(number) for number in range(258)}
    recorder.append(StepRecord(step=0, observed=values), time=0.0)
    recorder.append(StepRecord(step=1, observed=values), time=0.0)
    recorder.close()
    MoreValues(path, 2).append(2, [(20, 5.0)])  # the process died before it counted the row

    recorder = FlightRecorder(path, 2)
    recorder.append(StepRecord(step=2, observed={"n17": 1.0}), time=0.0)
    recorder.close()

    with FlightReader(path) as reader:
        records = reader.records()
    assert told == ["n256"]
    assert [len(record.observed) for record in records] == [256, 256, 1]
    assert records[2].observed == {"n17": 1.0}


def test_lost_names_cost_the_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    recorder = FlightRecorder(path, 1)
    recorder.append(StepRecord(step=0, observed={"a": 1.0}), time=0.0)
    recorder.close()
    columns = path.with_name("rank_0.steps.columns.json")

    columns.write_text("garbage")
    recorder = FlightRecorder(path, 2)
    recorder.append(StepRecord(step=1, observed={"b": 2.0}), time=0.0)
    recorder.close()

    with FlightReader(path) as reader:
        assert [dict(record.observed) for record in reader.records()] == [
            {"observed_0": 1.0},
            {"b": 2.0},
        ]


def test_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "steps" / "rank_0.steps"

    recorder = FlightRecorder(path, 1)
    recorder.append(StepRecord(step=0, observed={"a": 1.0}), time=0.0)
    recorder.close()

    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}


def test_a_truncated_file_gives_the_rows_that_are_left(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    filled(path, range(10))
    with open(path, "r+b") as file:
        file.truncate(64 + 4 * ROW.size + 17)

    with FlightReader(path) as reader:
        assert reader.read()["step"].tolist() == [0, 1, 2, 3]
    filled(path, range(4, 6))
    with FlightReader(path) as reader:
        assert reader.read()["step"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("freed", ["while it records", "at its end", "later"])
def test_rows_that_a_full_disk_refuses_are_there_when_it_takes_them(
    freed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(flight_recorder, "CHUNK_ROWS", 4)
    path = tmp_path / "rank_0.steps"
    recorder = FlightRecorder(path, 1)
    for step in range(4):
        recorder.append(StepRecord(step=step), time=0.0)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    for step in range(4, 11):  # past two chunks
        recorder.append(StepRecord(step=step), time=0.0)
    recorder.mark(3, flags=UPDATE_SKIPPED)
    if freed == "while it records":
        monkeypatch.undo()
        recorder.append(StepRecord(step=11), time=math.inf)
        assert FlightReader(path).rows() == 12
    elif freed == "at its end":
        monkeypatch.undo()
    elif freed == "later":
        monkeypatch.setattr(KeptWrite, "make", lambda write: refuse(0, 0, 0))
    recorder.close()
    monkeypatch.undo()
    KEPT.try_again(now=True)

    with FlightReader(path) as reader:
        rows = reader.read()
    assert rows["step"].tolist() == list(range(12 if freed == "while it records" else 11))
    assert rows["flags"][3] & UPDATE_SKIPPED
    again = FlightRecorder(path, 2)
    assert again.rows == len(rows)
    again.close()


def test_a_disk_that_is_full_from_the_start_has_the_steps_when_it_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "rank_0.steps"
    monkeypatch.setattr(os, "posix_fallocate", refuse)

    recorder = FlightRecorder(path, 1)
    recorder.append(StepRecord(step=0), time=0.0)
    monkeypatch.undo()
    recorder.close()

    with FlightReader(path) as reader:
        assert reader.read()["step"].tolist() == [0]


def test_a_disk_that_cannot_reserve_room_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int, start: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    path = tmp_path / "rank_0.steps"

    filled(path, range(3))

    with FlightReader(path) as reader:
        assert reader.rows() == 3


def test_a_foreign_file_is_refused_by_reader_and_writer(tmp_path: Path) -> None:
    path = tmp_path / "steps" / "rank_0.steps"
    path.parent.mkdir()
    path.write_bytes(b"something else entirely, and long enough to be a header")

    with pytest.raises(RunDirectoryError, match="not a flight recorder"):
        read_steps(tmp_path)
    with pytest.raises(RunDirectoryError, match="not a flight recorder"):
        FlightRecorder(path, 1)
    assert path.read_bytes().startswith(b"something else")


def test_a_directory_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no run directory: give the one"):
        read_steps(tmp_path / "nothing")


def test_a_run_without_steps_has_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")

    assert len(read_steps(tmp_path)) == 0


WRITE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from supervisor.records import StepRecord
from supervisor.storage.steps import flight_recorder

flight_recorder.CHUNK_ROWS = 64
recorder = flight_recorder.FlightRecorder(Path(sys.argv[1]), 1)
for step in itertools.count():
    x = float(step)
    recorder.append(
        StepRecord(step=step, loss=x, grad_norm=x, lr=x, loss_scale=x, observed={"x": x}), time=x
    )
    if step > 50_000:
        step = input()
"""


@pytest.mark.timeout(300)
def test_rows_are_whole_while_another_process_writes_and_after_it_was_killed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rank_0.steps"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, str(path)], stdin=subprocess.PIPE
    )
    seen = 0
    try:
        with FlightReader(path) as reader:
            end = time.monotonic() + 250.0
            while seen < 2000:
                assert time.monotonic() < end
                time.sleep(0.001)
                rows = reader.read(seen)
                check(rows, seen)
                seen += len(rows)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()

    with FlightReader(path) as reader:
        rows = reader.read()
    check(rows, 0)
    assert len(rows) >= seen
    filled(path, range(len(rows), len(rows) + 1), attempt=2)
    with FlightReader(path) as reader:
        assert reader.rows() == len(rows) + 1


def check(rows: np.ndarray, first: int) -> None:
    steps = np.arange(first, first + len(rows))
    assert np.array_equal(rows["step"], steps)
    for name in ("time", "loss", "grad_norm", "lr", "loss_scale"):
        assert np.array_equal(rows[name], steps)
    assert np.array_equal(rows["observed"][:, 0], steps)


def test_a_name_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "rank_0.steps", 1)
    in_the_way = columns_path(recorder.path)
    in_the_way.mkdir()
    recorder.append(StepRecord(step=0, observed={"kl": 1.0}), time=0.0)
    in_the_way.rmdir()
    recorder.append(StepRecord(step=1, observed={"kl": 2.0}), time=0.0)
    recorder.close()

    with FlightReader(recorder.path) as reader:
        assert [record.observed for record in reader.records()] == [{}, {"kl": 2.0}]


def test_a_row_whose_numbers_are_still_to_come_is_not_seen_before_they_are_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "steps"
    recorder, reader = FlightRecorder(path, 1), FlightReader(path)
    recorder.append(StepRecord(step=0, loss=1.0, loss_seen=True), time=1.0)
    row = recorder.append(StepRecord(step=1), time=2.0, flags=PENDING)
    assert (reader.rows(), recorder.rows) == (1, 2)
    assert [record.step for record in reader.records()] == [0]

    found = StepRecord(
        step=1,
        loss=2.0,
        grad_norm=3.0,
        loss_scale=8.0,
        loss_seen=True,
        grad_norm_seen=True,
        scaler_skipped=True,
        observed={"reward": 4.0},
    )
    recorder.complete(row, found)

    (_, late) = reader.records()
    assert (late.loss, late.grad_norm, late.loss_scale) == (2.0, 3.0, 8.0)
    assert late.loss_seen
    assert late.grad_norm_seen
    assert late.scaler_skipped
    assert late.observed == {"reward": 4.0}
    assert reader.lost_rows() == 0


def test_a_killed_step_whose_numbers_never_came_is_a_row_without_them(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    FlightRecorder(path, 1).append(StepRecord(step=0), time=1.0, flags=PENDING)

    later = FlightRecorder(path, 2)
    later.append(StepRecord(step=0, loss=1.0, loss_seen=True), time=2.0)

    first, second = FlightReader(path).records()
    assert not first.loss_seen
    assert second.loss == 1.0
