from __future__ import annotations

import struct
from pathlib import Path

from supervisor.parent.watching.rank_watch import GroupFeed, LifeCounter, RankWatch, StepFeed
from supervisor.records import StepRecord
from supervisor.storage.run.rundir import RunDirectory
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


def test_ranks_that_others_wait_for_are_known(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    rundir.make(rundir.steps(0).parent)
    feed = GroupFeed([RankWatch(rundir, rank) for rank in range(3)])
    assert feed.behind() == []

    append(rundir.steps(1), 1, 0)
    feed.take()
    assert feed.behind() == [0, 2]

    append(rundir.steps(0), 1, 0)
    append(rundir.steps(2), 1, 0)
    feed.take()
    assert (feed.behind(), feed.last_step) == ([], 0)
    feed.close()
