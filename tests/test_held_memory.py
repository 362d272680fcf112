"""Copies of the state take a share of what is free, and the one being written comes first."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from supervisor.held_memory import (
    BUFFER,
    PLACES,
    SNAPSHOTS,
    HeldMemory,
    count_oom_kills,
    free_bytes,
    taken_at_peak,
)
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


def test_logs_beside_the_copies_take_of_the_same_share() -> None:
    room = Room(1_600)  # of which all copies may take 400 MB
    room.memory.holds(SNAPSHOTS, 100 * MB, 2)

    too_much, fits = (room.memory.takes_beside(n * MB) for n in (201, 200))

    assert (too_much, fits) == (False, True)
    assert not room.memory.allows(BUFFER, 100 * MB)
    assert room.memory.takes_beside(0)
    assert room.memory.allows(BUFFER, 100 * MB)


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


NO_LIMIT = "9223372036854771712\n"
STAT = "cache 900\nrss 100\ninactive_file {own}\nactive_file 7\ntotal_inactive_file {total}\n"
STAT_2 = "anon 100\nfile 900\ninactive_file {own}\nactive_file 7\n"


def second(limit: str, used: int, in_files: int = 0, *, high: str = "max\n") -> dict[str, str]:
    stat = STAT_2.format(own=in_files)
    current = f"{used}\n"
    return {
        "memory.max": limit,
        "memory.high": high,
        "memory.current": current,
        "memory.stat": stat,
    }


def first(limit: str, used: int, in_files: int = 0) -> dict[str, str]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": STAT.format(own=1, total=in_files),
    }


def build(tmp_path: Path, own: str, groups: dict[str, dict[str, str]]) -> tuple[Path, Path]:
    for group, files in groups.items():
        folder = tmp_path / "cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    (tmp_path / "own").write_text(own)
    return tmp_path / "cgroup", tmp_path / "own"


@pytest.mark.parametrize(
    ("own", "groups", "free"),
    [
        ("0::/user/job\n", {"user/job": second("5000\n", 3000, 1000)}, 3000),
        ("0::/user/job\n", {"user/job": second("5000\n", 3000, high="4000\n")}, 1000),
        (
            "0::/user/job\n",
            {"user/job": second("max\n", 3000), "user": second("9000\n", 8000, 500)},
            1500,
        ),
        (
            "0::/user/job\n",
            {"user/job": second("5000\n", 1000), "user": second("9000\n", 8000)},
            1000,
        ),
        ("0::/\n", {".": second("5000\n", 6000)}, 0),
        ("4:memory:/job/step\n0::/\n", {"memory/job/step": first("5000\n", 3000, 500)}, 2500),
        (
            "4:cpu,memory:/job/step\n",
            {"memory/job/step": first(NO_LIMIT, 3000), "memory/job": first("4000\n", 3000)},
            1000,
        ),
        ("4:memory:/docker/abc\n", {"memory": first("5000\n", 3000)}, 2000),
        ("0::/job\n4:memory:/job\n", {"unified/job": {}, "memory/job": first("9\n", 2)}, 7),
    ],
    ids=[
        "version 2, files given back",
        "version 2, held up before its limit",
        "version 2, the limit of the group above",
        "version 2, two limits",
        "version 2, above its limit",
        "version 1, files given back",
        "version 1, the limit of the group above",
        "version 1, in a container",
        "both versions",
    ],
)
def test_the_tightest_group_says_what_is_free(
    tmp_path: Path, own: str, groups: dict[str, dict[str, str]], free: int
) -> None:
    assert free_bytes(*build(tmp_path, own, groups)) == free


@pytest.mark.parametrize(
    ("own", "groups"),
    [
        ("", {}),
        ("garbage\n", {}),
        ("0::/job\n", {"job": second("max\n", 3000)}),
        ("0::/job\n", {"job": {"memory.max": "5000\n"}}),
        ("4:memory:/job\n", {"memory/job": first(NO_LIMIT, 3000)}),
        ("3:cpu:/job\n", {"memory/job": first("5000\n", 3000)}),
    ],
)
def test_without_a_limit_the_host_says_what_is_free(
    tmp_path: Path, own: str, groups: dict[str, dict[str, str]]
) -> None:
    found = free_bytes(*build(tmp_path, own, groups))

    assert found > 1 << 20
    assert found <= psutil.virtual_memory().total
    assert free_bytes(tmp_path, tmp_path / "missing") > 1 << 20


def test_what_was_taken_at_the_peak_and_given_back_comes_again(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    3000 kB\nVmRSS:\t    1000 kB\n")

    assert taken_at_peak(status) == 2000 * 1024
    assert taken_at_peak(tmp_path / "missing") == 0


@pytest.mark.parametrize(
    ("own", "name", "text"),
    [
        ("0::/user/job\n", "user/job/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("4:memory:/elsewhere\n", "memory/memory.oom_control", "oom_kill 2\n"),
    ],
)
def test_kills_are_counted_in_both_versions_of_control_groups(
    tmp_path: Path, own: str, name: str, text: str
) -> None:
    group, _, file = name.rpartition("/")

    assert count_oom_kills(*build(tmp_path, own, {group: {file: text}})) == 2


@pytest.mark.parametrize("own", ["", "garbage\n", "0::/none\n"])
def test_what_cannot_be_read_counts_as_no_kill(tmp_path: Path, own: str) -> None:
    assert count_oom_kills(*build(tmp_path, own, {})) == 0
    assert count_oom_kills(tmp_path, tmp_path / "missing") == 0
