from __future__ import annotations

import struct
from pathlib import Path

from supervisor.parent.watching.rank_watch import LifeCounter, StepFeed
from supervisor.records import StepRecord
from supervisor.storage.steps.flight_recorder import FlightRecorder


def append(path: Path, attempt: int, *steps: int) -> None:
    recorder = FlightRecorder(path, attempt)
    for step in steps:
        recorder.append(StepRecord(step=step), time=0.0)
    recorder.close()


def test_a_feed_gives_each_new_step_once(tmp_path: Path) -> None:
    feed = StepFeed(tmp_path / "steps")
    assert (feed.take(), feed.has_stepped) == ([], False)

    append(tmp_path / "steps", 1, 0, 1)

    assert [record.step for record in feed.take()] == [0, 1]
    assert feed.take() == []
    assert (feed.last_step, feed.has_stepped) == (1, True)


def test_steps_of_earlier_attempts_are_not_this_ones(tmp_path: Path) -> None:
    append(tmp_path / "steps", 1, 0, 1)

    feed = StepFeed(tmp_path / "steps")

    assert feed.take() == []
    assert (feed.last_step, feed.has_stepped) == (None, True)


def test_a_count_that_moves_is_life_and_a_file_that_is_missing_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    life = LifeCounter(path)
    assert not life.has_moved()

    path.write_bytes(struct.pack("<Q", 7))
    assert life.has_moved()
    assert not life.has_moved()

    path.write_bytes(b"torn")
    assert not life.has_moved()
