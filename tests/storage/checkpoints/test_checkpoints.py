from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing, FileSystem
from supervisor.storage.checkpoints.retention import GIB
from tests.storage.failing_file_system import FailingFileSystem, FastDisk, SmallDisk, writer

SETTINGS = CheckpointSettings(keep_last=3, min_free_gib=0.0)


def ring_at(folder: Path, **changes: object) -> CheckpointRing:
    rules = CheckpointSettings(**vars(SETTINGS) | changes)
    return CheckpointRing(folder / "checkpoints", rules, file_system=FastDisk())


def save(ring: CheckpointRing, *steps: int) -> None:
    for step in steps:
        ring.save(step, writer(FileSystem(), str(step)), reason="interval", meta={})


def steps_of(checkpoints: list[Checkpoint]) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints]


class Rejections:
    def __init__(self, ring: CheckpointRing) -> None:
        self.told: list[tuple[int, str]] = []
        ring.on_rejected = lambda checkpoint, why: self.told.append((checkpoint.step, why))


def test_what_was_saved_is_found_again_with_its_meta(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "model.pt").write_bytes(b"weights")
        (folder / "ranks").mkdir()
        (folder / "ranks" / "0.pt").write_bytes(b"shard")

    ring = ring_at(tmp_path)
    ring.save(7, write, reason="risk", meta={"loss": math.nan, "names": ["a"], "inf": math.inf})

    found = ring_at(tmp_path).newest_verified()
    assert found is not None
    assert (found.step, found.reason, found.stable, found.bytes) == (7, "risk", False, 12)
    assert sorted(found.files) == ["model.pt", "ranks/0.pt"]
    assert math.isnan(found.meta["loss"])
    assert found.meta["inf"] == math.inf
    assert set(found.versions) == {"python", "torch", "supervisor"}
    assert (found.path / "ranks" / "0.pt").read_bytes() == b"shard"


def test_folders_and_manifests_are_private(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)

    save(ring, 1)

    assert ring.folder.stat().st_mode & 0o777 == 0o700
    assert (ring.folder / "step_00000001").stat().st_mode & 0o777 == 0o700
    assert (ring.folder / "step_00000001" / "manifest.json").stat().st_mode & 0o777 == 0o600


def test_no_folder_means_no_checkpoints(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)

    assert ring.checkpoints() == []
    assert ring.newest_verified() is None
    assert ring.last_stable() is None
    assert ring.sweep() == 0


def test_a_step_that_was_saved_before_is_not_written_again(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 5)

    again = ring.save(5, lambda folder: pytest.fail("written"), reason="x", meta={})

    assert again.reason == "interval"


def test_a_damaged_checkpoint_of_the_same_step_is_put_aside(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 5)
    (ring.folder / "step_00000005" / "part_0.pt").write_bytes(b"rotten")

    save(ring, 5)

    newest = ring.newest_verified()
    assert newest is not None
    assert newest.step == 5
    assert len(list(ring.folder.glob(".damaged-*"))) == 1


def test_an_error_of_the_writer_comes_through_and_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise ValueError("no state")

    ring = ring_at(tmp_path)

    with pytest.raises(ValueError, match="no state"):
        ring.save(1, write, reason="x", meta={})

    assert list(ring.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["part_0.pt", "part_1.pt", "manifest.json"])
def test_a_flipped_bit_in_any_file_is_noticed_and_told(name: str, tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1, 2)
    path = ring.folder / "step_00000002" / name
    whole = path.read_bytes()
    told = Rejections(ring)

    for at in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(bytes(flipped))
        newest = ring.newest_verified()
        assert newest is not None
        if name != "manifest.json":
            assert newest.step == 1
        elif newest.step == 2:  # white space alone may differ
            assert json.loads(flipped) == json.loads(whole)

    assert {step for step, _ in told.told} == {2}
    assert all(": use an older checkpoint" in why for _, why in told.told)


@pytest.mark.parametrize("name", ["part_0.pt", "part_1.pt", "manifest.json"])
@pytest.mark.parametrize("harm", ["truncate", "empty", "remove", "folder"])
def test_a_harmed_file_makes_the_older_checkpoint_the_newest(
    name: str, harm: str, tmp_path: Path
) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1, 2)
    path = ring.folder / "step_00000002" / name
    data = path.read_bytes()
    path.unlink()
    if harm == "folder":
        path.mkdir()
    elif harm != "remove":
        path.write_bytes(data[:-3] if harm == "truncate" else b"")
    told = Rejections(ring)

    newest = ring.newest_verified()

    assert newest is not None
    assert newest.step == 1
    assert [step for step, _ in told.told] == [2]
    with pytest.raises(CheckpointDamaged):
        ring.get(2)
    with pytest.raises(CheckpointDamaged):
        ring.mark_stable(2)


def test_foreign_and_half_written_folders_are_ignored(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1)
    for name in ("step_00000009", "step_9", "mine", ".staged-00000008-host-1-2-0"):
        (ring.folder / name).mkdir()
        (ring.folder / name / "model.pt").write_bytes(b"x")
    (ring.folder / "step_00000010").write_bytes(b"a file")
    (ring.folder / "step_00000011").symlink_to(ring.folder / "step_00000001")
    told = Rejections(ring)

    newest = ring.newest_verified()

    assert newest is not None
    assert newest.step == 1
    assert steps_of(ring.checkpoints()) == [1]
    assert [step for step, _ in told.told] == [9]


def test_a_checkpoint_that_was_renamed_is_rejected(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1, 2)
    (ring.folder / "step_00000002").rename(ring.folder / "step_00000050")
    told = Rejections(ring)

    newest = ring.newest_verified()

    assert newest is not None
    assert newest.step == 1
    assert "its manifest is that of step 2" in told.told[0][1]


def test_a_file_that_leads_out_of_the_folder_is_never_believed(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1)
    part = ring.folder / "step_00000001" / "part_0.pt"
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CheckpointDamaged, match="leads out of its folder"):
        ring.get(1)


def test_a_file_that_the_disk_cannot_read_any_more_is_damage(tmp_path: Path) -> None:
    class BadBlock(FastDisk):
        def checksum(self, path: Path, *, fresh: bool = False) -> str:
            if path.parent.name == "step_00000002":
                raise OSError(errno.EIO, "Input/output error", str(path))
            return super().checksum(path, fresh=fresh)

    save(ring_at(tmp_path), 1, 2)
    ring = CheckpointRing(tmp_path / "checkpoints", SETTINGS, file_system=BadBlock())
    told = Rejections(ring)

    newest = ring.newest_verified()

    assert newest is not None
    assert newest.step == 1
    assert "the disk cannot read it" in told.told[0][1]


def test_before_step_is_exclusive(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1, 2, 3)
    ring.mark_stable(2)

    assert [c and c.step for c in (ring.newest_verified(3), ring.last_stable(3))] == [2, 2]
    assert ring.last_stable(2) is None


def test_an_unknown_step_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1, 2)

    with pytest.raises(CheckpointError, match="choose one of these steps: 1, 2"):
        ring.get(3)


def test_a_damaged_stable_checkpoint_hands_over_to_the_stable_one_before(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1, 2, 3)
    ring.mark_stable(1)
    ring.mark_stable(2)
    (ring.folder / "step_00000002" / "part_1.pt").write_bytes(b"")
    told = Rejections(ring)

    stable = ring.last_stable()

    assert stable is not None
    assert stable.step == 1
    assert [step for step, _ in told.told] == [2]


def test_retention_keeps_an_older_stable_one_when_the_newest_stable_one_rotted(
    tmp_path: Path,
) -> None:
    ring = ring_at(tmp_path, keep_last=2)
    save(ring, 1, 2)
    ring.mark_stable(1)
    ring.mark_stable(2)
    (ring.folder / "step_00000002" / "part_1.pt").write_bytes(b"")

    save(ring, 3, 4)

    stable = ring.last_stable()
    assert stable is not None
    assert stable.step == 1


def test_one_of_many_quick_checkpoints_lives_long_enough_to_become_stable(tmp_path: Path) -> None:
    ring = ring_at(tmp_path, keep_last=3, stable_after_steps=50)
    lags = []
    for step in range(10, 510, 10):
        save(ring, step)
        ripe = [c.step for c in ring.checkpoints() if not c.stable and step - c.step >= 50]
        for due in ripe:
            ring.mark_stable(due)
        stable = ring.last_stable()
        lags.append(step - stable.step if stable else step)

    assert max(lags) <= 2 * 50
    assert len(ring.checkpoints()) <= 3 + 2


def test_a_spoiled_checkpoint_makes_way_for_the_next_that_may_become_stable(
    tmp_path: Path,
) -> None:
    ring = ring_at(tmp_path, keep_last=2, stable_after_steps=50)
    save(ring, 10, 20, 30)
    ring.spoil(10)

    save(ring, 40, 50, 60)

    assert steps_of(ring.checkpoints()) == [20, 50, 60]


def test_discarded_steps_can_be_saved_anew(tmp_path: Path) -> None:
    ring = ring_at(tmp_path)
    save(ring, 1, 2, 3)

    discarded = ring.discard_after(1)

    assert steps_of(discarded) == [2, 3]
    assert steps_of(ring.checkpoints()) == [1]


@settings(max_examples=40, deadline=None)
@given(
    keep_last=st.integers(0, 4),
    deeds=st.lists(
        st.one_of(st.integers(1, 6), st.tuples(st.just("stable"), st.integers(0, 5))),
        max_size=14,
    ),
)
def test_retention_keeps_the_newest_and_the_newest_stable_whatever_is_done(
    keep_last: int,
    deeds: list[int | tuple[str, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("ring") / "checkpoints"
    rules = CheckpointSettings(keep_last=keep_last, min_free_gib=0.0)
    ring = CheckpointRing(folder, rules, file_system=FailingFileSystem())
    step = 0
    saved: list[int] = []
    stable = None
    for deed in deeds:
        if isinstance(deed, int):
            step += deed
            ring.save(step, writer(FileSystem(), "x", 1), reason="interval", meta={})
            saved.append(step)
        elif ring.checkpoints():
            found = ring.checkpoints()
            stable = max(stable or 0, ring.mark_stable(found[deed[1] % len(found)].step).step)

        found = ring.checkpoints()
        newest = saved[-max(1, keep_last) :]
        assert steps_of(found)[-len(newest) :] == newest if newest else not found
        assert stable is None or stable in [c.step for c in found if c.stable]
        assert len(found) <= max(1, keep_last) + 2 + isinstance(deed, tuple) * len(saved)


def test_a_short_disk_costs_old_unstable_checkpoints_first(tmp_path: Path) -> None:
    size = 200
    folder = tmp_path / "checkpoints"
    disk = SmallDisk(folder, capacity=4 * size + 20)
    rules = CheckpointSettings(keep_last=10, min_free_gib=0.0)
    ring = CheckpointRing(folder, rules, file_system=disk)
    for step in (1, 2, 3, 4):
        ring.save(step, writer(disk, "12"), reason="interval", meta={})
        if step == 1:
            ring.mark_stable(1)

    ring.save(5, writer(disk, "12"), reason="interval", meta={})

    assert steps_of(ring.checkpoints()) == [1, 2, 4, 5]  # 2 will be stable next


def test_a_full_disk_never_costs_the_newest_or_the_newest_stable_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    disk = SmallDisk(folder, capacity=1000)
    rules = CheckpointSettings(keep_last=10, min_free_gib=0.0)
    ring = CheckpointRing(folder, rules, file_system=disk)
    for step in (1, 2, 3):
        ring.save(step, writer(disk, "12"), reason="interval", meta={})
    ring.mark_stable(1)

    with pytest.raises(CheckpointError, match="make room on this disk, or lower"):
        ring.save(4, writer(disk, "12"), reason="x", meta={}, estimated_bytes=5000)

    assert steps_of(ring.checkpoints()) == [1, 3]


def test_room_is_warned_about_before_it_is_gone(tmp_path: Path) -> None:
    disk = FailingFileSystem()
    rules = CheckpointSettings(min_free_gib=1.0)
    ring = CheckpointRing(tmp_path / "checkpoints", rules, file_system=disk)

    warnings = []
    for gib in (100, 2.5, 5):
        disk.free = int(gib * GIB)
        warnings.append(ring.room_warning(estimated_bytes=2 * GIB))

    assert warnings[0] is None
    assert "only 2.50 GiB are free" in str(warnings[1])
    assert "2 more checkpoints of 2.00 GiB fit" in str(warnings[2])
