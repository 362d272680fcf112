"""States that a treatment threw away: there for a person, and for nobody else."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from supervisor.errors import CheckpointError
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing, FileSystem
from tests.storage.failing_file_system import FastDisk, SmallDisk, writer

RULES = CheckpointSettings(keep_last=2, min_free_gib=0.0, stable_after_steps=50)


def ring_at(folder: Path, disk: FileSystem | None = None) -> CheckpointRing:
    times = itertools.count()
    return CheckpointRing(
        folder / "checkpoints",
        RULES,
        file_system=disk or FastDisk(),
        clock=lambda: float(next(times)),
    )


def save(ring: CheckpointRing, *steps: int, abandoned: bool = False, text: str = "12") -> None:
    for step in steps:
        meta = {"tape_offset": 10 * step}
        writes = writer(FileSystem(), text)
        ring.save(step, writes, reason="before rollback", meta=meta, abandoned=abandoned)


def kept(ring: CheckpointRing) -> tuple[list[int], list[int]]:
    """Steps of the run's course, and of what was abandoned."""
    return [c.step for c in ring.checkpoints()], [c.step for c in ring.abandoned()]


def test_nothing_starts_from_an_abandoned_state_unless_it_is_asked_for(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 10)
    save(ring, 30, abandoned=True)

    newest = ring.newest_verified()
    assert newest is not None
    assert newest.step == 10
    assert ring.last_stable() is None
    assert ring.get(30).abandoned
    with pytest.raises(CheckpointError, match="abandoned"):
        ring.mark_stable(30)


def test_a_run_whose_only_checkpoint_was_abandoned_has_none_to_go_on_from(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)

    save(ring, 30, abandoned=True)

    assert ring.newest_verified() is None
    assert kept(ring) == ([], [30])


def test_abandoned_states_push_no_other_checkpoint_out_and_are_two_at_most(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 10, 20)
    ring.mark_stable(10)

    save(ring, 30, 35, 38, 41, abandoned=True)  # of one trouble: its first and its last

    assert kept(ring) == ([10, 20], [30, 41])
    save(ring, 200, abandoned=True)  # another trouble
    assert kept(ring) == ([10, 20], [200])


def test_the_run_that_starts_from_an_abandoned_state_makes_it_its_own(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 10)
    save(ring, 30, abandoned=True)

    ring.adopt(30)

    newest = ring.newest_verified()
    assert newest is not None
    assert (newest.step, newest.abandoned) == (30, False)


def test_going_back_further_leaves_it_and_takes_its_tape(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 10, 40)
    save(ring, 5, 30, abandoned=True)

    ring.leave_course(10)
    ring.discard_after(10)

    assert kept(ring) == ([10], [5, 30])
    assert [ring.get(step).meta["tape_offset"] for step in (5, 30)] == [50, -1]


def test_a_checkpoint_of_the_same_step_takes_its_place_but_not_the_other_way(
    tmp_path: Path,
) -> None:
    ring = ring_at(tmp_path)
    save(ring, 10)
    save(ring, 30, abandoned=True)
    saved, thrown = ring.get(10).files, ring.get(30).files

    save(ring, 10, abandoned=True, text="other")
    save(ring, 30, text="other")

    assert kept(ring) == ([10, 30], [])
    assert ring.get(10).files == saved
    assert ring.get(30).files != thrown


def test_on_a_short_disk_abandoned_states_go_first_and_take_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    size = 200  # bytes of one
    disk = SmallDisk(folder, capacity=3 * size + 20)
    ring = ring_at(tmp_path, disk)
    for step in (10, 20):
        ring.save(step, writer(disk, "12"), reason="interval", meta={})
    ring.save(30, writer(disk, "12"), reason="x", meta={}, abandoned=True)

    ring.save(40, writer(disk, "12"), reason="interval", meta={}, estimated_bytes=size)
    assert kept(ring) == ([10, 20, 40], [])
    with pytest.raises(CheckpointError, match="make room"):
        ring.save(50, writer(disk, "12"), reason="x", meta={}, abandoned=True, estimated_bytes=size)
    assert kept(ring) == ([10, 20, 40], [])
