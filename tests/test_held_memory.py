"""Copies of the state take a share of what is free, and the one being written comes first."""

from __future__ import annotations

import pytest
import torch

from supervisor.held_memory import BUFFER, PLACES, SNAPSHOTS, HeldMemory
from supervisor.settings import SnapshotSettings
from supervisor.training_state.snapshot import SnapshotRing

MB = 1_000_000


class Room:
    """A node with so much memory free beside what is held in it."""

    def __init__(self, free_mb: int, **given: object) -> None:
        self.free_mb = free_mb
        self.told: list[int] = []
        self.memory = HeldMemory(
            SnapshotSettings(),
            free=lambda: self.free_mb * MB - self._held(),
            at_peak=lambda: 0,
            tell=self.told.append,
            **given,  # type: ignore[arg-type]
        )
        self.memory.has_trained = True

    def _held(self) -> int:
        return sum(held.bytes for held in self.memory._held.values())

    def take(self, size_mb: int) -> tuple[bool, int]:
        """Whether a save has its copy, and how many snapshots there are beside it."""
        memory, size = self.memory, size_mb * MB
        fits = memory.snapshots(size, 3)
        memory.holds(SNAPSHOTS, size, fits)
        has_buffer = memory.allows(BUFFER, size)
        memory.holds(BUFFER, size, int(has_buffer))
        return has_buffer, fits


@pytest.mark.parametrize(
    ("free_mb", "found"),
    [
        (100_000, (True, 3)),
        (1_600, (True, 3)),
        (1_590, (True, 2)),
        (800, (True, 1)),
        (799, (True, 0)),
        (400, (True, 0)),
        (399, (False, 0)),
        (0, (False, 0)),
    ],
)
def test_all_copies_together_take_a_quarter_of_what_is_free(
    free_mb: int, found: tuple[bool, int]
) -> None:
    assert Room(free_mb).take(100) == found


def test_ranks_of_a_node_share_what_is_free() -> None:
    assert Room(1600, ranks=4).take(100) == (True, 0)
    assert Room(6400, ranks=4).take(100) == (True, 3)


def test_what_the_training_takes_at_its_peak_is_not_free() -> None:
    room = Room(1600)
    room.memory._at_peak = lambda: 1200 * MB

    assert room.take(100) == (True, 0)


def test_before_the_first_step_little_is_held_because_its_peak_is_not_known() -> None:
    room = Room(1600)
    room.memory.has_trained = False

    assert room.take(100) == (True, 0)


def test_snapshots_leave_room_for_what_is_kept_beside_the_process() -> None:
    room = Room(2000, first={BUFFER: 1, PLACES: 2})

    assert room.memory.snapshots(100 * MB, 3) == 2
    room.memory.leaves_out(PLACES)
    assert room.memory.snapshots(100 * MB, 3) == 3


@pytest.mark.parametrize(("most", "found"), [(0, (False, 0)), (1, (True, 0)), (2, (True, 1))])
def test_no_more_is_held_than_the_parent_allows(most: int, found: tuple[bool, int]) -> None:
    assert Room(100_000, most=most).take(100) == found


def test_what_is_held_is_told_before_it_changes_and_in_words() -> None:
    room = Room(1600)
    assert room.take(100) == (True, 3)

    assert room.told == [3, 4]
    assert room.memory.plan(6) == "4 copies of 0.1 GB, 0.6 GB on disk"


def test_under_pressure_snapshots_are_given_back_first_and_not_for_a_moments_need() -> None:
    room = Room(1600)
    ring = SnapshotRing(SnapshotSettings(), room.memory)
    live = {"models": {"w": torch.zeros(25 * MB)}}  # 100 MB
    for step in (1, 20, 40):
        ring.take(step, live, {})
    assert ring.steps() == [1, 20, 40]

    room.free_mb = 1000
    ring.fit(50)
    after_a_little = ring.steps()
    room.free_mb = 500
    ring.fit(50)

    assert after_a_little == [1, 20, 40]
    assert ring.steps() == []
    assert room.memory.copies == 0
    assert room.memory.allows(BUFFER, 100 * MB)


def test_without_room_a_rollback_finds_what_is_on_disk() -> None:
    asked: list[int] = []
    ring = SnapshotRing(SnapshotSettings(), Room(0).memory, lambda step: asked.append(step))

    assert ring.take(10, {"models": {"w": torch.zeros(9)}}, {}) == 0.0
    assert ring.newest() is None
    assert ring.on_disk(8) is None
    assert asked == [8]
