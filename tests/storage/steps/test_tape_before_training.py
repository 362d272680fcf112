"""The part of a replay log before the training: a resume may read other things there, or fewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader


def reader_of(path: Path, *kinds: EntryKind) -> ReplayLogReader:
    replay_log = ReplayLogWriter(path / "tape")
    for number, kind in enumerate(kinds):
        replay_log.append(kind, bytes([number]))
    end = replay_log.write_out()
    replay_log.close()
    return ReplayLogReader(path / "tape", end=end)


def test_values_before_the_training_are_passed_over_and_files_and_batches_are_not(
    tmp_path: Path,
) -> None:
    before = (EntryKind.BOOL, EntryKind.FILE_SIZE, EntryKind.TENSOR, EntryKind.BATCH)
    reader = reader_of(tmp_path, *before, EntryKind.FLOAT, EntryKind.TRAINING, EntryKind.INT)
    passed: list[bytes] = []
    reader.on_passed = passed.append

    assert reader.take(EntryKind.FILE_SIZE) == bytes([1])
    assert reader.take(EntryKind.BATCH) == bytes([3])
    assert reader.is_before_training

    assert reader.begin_training()
    assert passed == [bytes([2])]
    assert reader.take(EntryKind.INT) == bytes([6])
    assert reader.begin_training()  # a second call does nothing
    assert not reader.peek()


def test_a_run_that_does_less_before_its_training_comes_to_the_same_place(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, EntryKind.BATCH, EntryKind.TRAINING, EntryKind.STEP)

    assert not reader.begin_training()
    assert reader.take(EntryKind.STEP) == bytes([2])


def test_a_run_that_does_more_before_its_training_is_not_the_recorded_one(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, EntryKind.BOOL, EntryKind.TRAINING)

    with pytest.raises(ReplayError, match="'batch' where the recorded run had 'training'"):
        reader.take(EntryKind.BATCH)


def test_a_tape_that_never_came_to_training_is_read_as_it_is(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, EntryKind.BOOL)

    assert not reader.is_before_training
    assert reader.take(EntryKind.BOOL) == bytes([0])


EARLY = (EntryKind.BOOL, EntryKind.FILE_SIZE, EntryKind.UNUSED, EntryKind.INT, EntryKind.FLOAT)


def test_values_behind_an_early_beginning_are_handed_out(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, *EARLY, EntryKind.TRAINING, EntryKind.STEP)
    reader.take(EntryKind.FILE_SIZE)

    reader.begin_early(2)  # a truth value and a whole number were read as they are

    assert not reader.is_before_training
    assert reader.take(EntryKind.FLOAT) == bytes([4])
    assert reader.begin_training()
    assert reader.take(EntryKind.STEP) == bytes([6])
    assert reader.begin_training()


@pytest.mark.parametrize("reads", [0, 3])
def test_an_early_beginning_behind_another_number_of_values_is_not_the_recorded_run(
    tmp_path: Path, reads: int
) -> None:
    reader = reader_of(tmp_path, EntryKind.BOOL, EntryKind.FILE_SIZE, EntryKind.TRAINING)
    reader.take(EntryKind.FILE_SIZE)

    with pytest.raises(ReplayError, match="other values"):
        reader.begin_early(reads)


def test_what_is_left_of_an_early_beginning_is_not_the_recorded_run(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, EntryKind.BOOL, EntryKind.TRAINING)
    reader.begin_early(0)

    with pytest.raises(ReplayError, match="does less"):
        reader.begin_training()
