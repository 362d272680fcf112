"""Damage to a run's own record is set aside and named, and what is whole is used."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from supervisor.events.run_events import GaveUp
from supervisor.records import StepRecord
from supervisor.storage.damaged_files import set_damaged_aside, set_steps_aside
from supervisor.storage.journal.journal import JournalMerger, read_journal
from supervisor.storage.run.run_state import load_run_state, new_run_state, save_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightReader, FlightRecorder
from supervisor.storage.steps.step_rows import HEADER_BYTES, ROWS_OFFSET


@pytest.fixture
def rundir(tmp_path: Path) -> RunDirectory:
    """With a state, three events and five steps."""
    found = RunDirectory(tmp_path)
    state = new_run_state(command=["run"], kind="script", script="a.py", arguments=["--lr", "0.1"])
    save_run_state(found, state)
    with JournalMerger(found) as journal:
        for number in range(3):
            journal.write(GaveUp(reason=f"reason {number}"))
    recorder = FlightRecorder(found.steps(0), 1)
    for step in range(5):
        recorder.append(StepRecord(step=step, observed={"x": 1.0}), time=1.0)
    recorder.close()
    return found


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_what_is_whole_stays_as_it_is(rundir: RunDirectory) -> None:
    before = {path: path.read_bytes() for path in rundir.root.rglob("*") if path.is_file()}

    assert set_damaged_aside(rundir) == set_steps_aside(rundir) == []
    assert before == {path: path.read_bytes() for path in rundir.root.rglob("*") if path.is_file()}


def test_any_flipped_bit_of_run_json_leaves_the_state_as_it_was(rundir: RunDirectory) -> None:
    whole, state = rundir.run_json.read_bytes(), load_run_state(rundir)

    for at in range(0, len(whole), 7):
        rundir.run_json.write_bytes(whole)
        flip(rundir.run_json, at, at % 8)

        assert load_run_state(rundir) == state, at
    (sentence,) = set_damaged_aside(rundir)

    assert "run.json.damaged" in sentence
    assert rundir.run_json.read_bytes() == whole
    assert (rundir.root / "run.json.damaged").exists()


def test_a_run_of_before_without_a_checksum_is_read(rundir: RunDirectory) -> None:
    fields = json.loads(rundir.run_json.read_text())
    del fields["checksum"]
    rundir.run_json.write_text(json.dumps({**fields, "state": "gave_up"}))

    assert load_run_state(rundir).state == "gave_up"
    assert set_damaged_aside(rundir) == []


def test_a_damaged_line_costs_itself_and_is_named(rundir: RunDirectory) -> None:
    whole = rundir.journal.read_bytes()
    flip(rundir.journal, whole.index(b"reason 1") - 1, 3)  # a quotation mark

    (sentence,) = set_damaged_aside(rundir)

    assert "1 line(s) of the journal" in sentence
    assert [event.reason for event in read_journal(rundir.journal)] == ["reason 0", "reason 2"]  # type: ignore[attr-defined]
    assert len((rundir.root / "events.jsonl.damaged").read_bytes()) == len(whole)
    assert set_damaged_aside(rundir) == []


def test_a_damaged_head_sets_the_flight_recorder_aside_with_what_belongs_to_it(
    rundir: RunDirectory,
) -> None:
    flip(rundir.steps(0), 3, 2)

    (sentence,) = set_steps_aside(rundir)

    assert "rank_0.steps.damaged" in sentence
    names = sorted(path.name for path in rundir.steps(0).parent.iterdir())
    assert names == ["rank_0.steps.columns.json.damaged", "rank_0.steps.damaged"]


@pytest.mark.parametrize("told", [0, 1, 3, 6, 9, 4000, 1 << 40])
def test_a_damaged_count_of_steps_is_counted_again(told: int, rundir: RunDirectory) -> None:
    data = bytearray(rundir.steps(0).read_bytes())
    data[ROWS_OFFSET : ROWS_OFFSET + 8] = struct.pack("<Q", told)
    rundir.steps(0).write_bytes(data)

    (sentence,) = set_steps_aside(rundir)

    assert f"told of {told} steps and has 5" in sentence
    with FlightReader(rundir.steps(0)) as reader:
        assert reader.read()["step"].tolist() == [0, 1, 2, 3, 4]


def test_a_row_that_a_killed_writer_had_not_counted_yet_is_no_damage(rundir: RunDirectory) -> None:
    data = bytearray(rundir.steps(0).read_bytes())
    data[ROWS_OFFSET : ROWS_OFFSET + 8] = struct.pack("<Q", 4)
    rundir.steps(0).write_bytes(data)

    assert set_steps_aside(rundir) == []
    assert len(data) > HEADER_BYTES
