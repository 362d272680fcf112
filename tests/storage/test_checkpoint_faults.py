"""Every file operation of the ring fails once, in every way: nothing damaged is ever loaded."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.errors import CheckpointError
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing, FileSystem
from supervisor.storage.files import file_system as aside
from tests.storage.failing_file_system import FailingFileSystem, FastDisk, Killed, writer

SETTINGS = CheckpointSettings(keep_last=2, stable_after_steps=0, min_free_gib=0.0)
Act = Callable[[CheckpointRing, FailingFileSystem], object]


def save_30(ring: CheckpointRing, disk: FailingFileSystem) -> object:
    return ring.save(30, writer(disk, "30"), reason="interval", meta={"n": 30})


def save_damaged_20_again(ring: CheckpointRing, disk: FailingFileSystem) -> object:
    part = ring.folder / "step_00000020" / "part_0.pt"
    part.write_bytes(b"rotten")
    return ring.save(20, writer(disk, "20"), reason="interval", meta={"n": 20})


def mark_20(ring: CheckpointRing, disk: FailingFileSystem) -> object:
    return ring.mark_stable(20)


def save_first(ring: CheckpointRing, disk: FailingFileSystem) -> object:
    folder = ring.folder.parent / "other" / "checkpoints"
    other = CheckpointRing(folder, SETTINGS, file_system=disk)
    return other.save(1, writer(disk, "1"), reason="interval", meta={})


def discard_20(ring: CheckpointRing, disk: FailingFileSystem) -> object:
    return ring.discard_after(10)


ACTS: list[Act] = [save_30, save_damaged_20_again, mark_20, discard_20, save_first]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 0 is stable and would be retained; 10 and 20 are not stable."""
    folder = tmp_path_factory.mktemp("template") / "checkpoints"
    ring = CheckpointRing(folder, SETTINGS, file_system=FastDisk())
    for step in (0, 10, 20):
        ring.save(step, writer(FileSystem(), str(step)), reason="interval", meta={"n": step})
        if step == 0:
            ring.mark_stable(0)
    return folder


def filled(template: Path, folder: Path, disk: FileSystem) -> CheckpointRing:
    shutil.copytree(template, folder)
    return CheckpointRing(folder, SETTINGS, file_system=disk)


def operations_of(act: Act, template: Path, folder: Path) -> int:
    disk = FailingFileSystem()
    ring = filled(template, folder, disk)
    act(ring, disk)
    return disk.operations


def check_invariants(folder: Path) -> None:
    """What a new process finds: only whole checkpoints, the stable one among them."""
    ring = CheckpointRing(folder, SETTINGS)
    for checkpoint in ring.checkpoints():
        step = checkpoint.step
        if step == 20 and (folder / "step_00000020" / "part_0.pt").read_bytes() == b"rotten":
            continue
        ring.verify(checkpoint)
        assert checkpoint.meta == {"n": step}
        for number in range(2):
            data = (checkpoint.path / f"part_{number}.pt").read_bytes()
            assert data == f"{step} {number} ".encode() * 20
    newest = ring.newest_verified()
    stable = ring.last_stable()
    assert newest is not None
    assert newest.step >= 10
    assert stable is not None
    assert stable.step in (0, 20)


@pytest.mark.parametrize("act", ACTS)
def test_a_kill_at_any_operation_leaves_only_whole_checkpoints(
    act: Act, template: Path, tmp_path: Path
) -> None:
    total = operations_of(act, template, tmp_path / "count" / "checkpoints")

    for k in range(total):
        folder = tmp_path / f"kill_{k}" / "checkpoints"
        disk = FailingFileSystem(fail_at=k)
        ring = filled(template, folder, disk)
        with pytest.raises(Killed):
            act(ring, disk)

        check_invariants(folder)
    assert total >= 8


@pytest.mark.parametrize(
    ("act", "error"), [*((act, errno.ENOSPC) for act in ACTS), (save_30, errno.EROFS)]
)
def test_a_refusal_at_any_operation_is_told_and_harms_nothing(
    act: Act, error: int, template: Path, tmp_path: Path
) -> None:
    total = operations_of(act, template, tmp_path / "count" / "checkpoints")

    told = []
    for k in range(total):
        folder = tmp_path / f"fail_{k}" / "checkpoints"
        disk = FailingFileSystem(fail_at=k, error=error)
        ring = filled(template, folder, disk)
        try:
            act(ring, disk)
        except CheckpointError as refusal:
            told.append(str(refusal))

        check_invariants(folder)
        names = [path.name for path in folder.iterdir()]
        assert not [name for name in names if aside.kind_of(name) == aside.STAGED]
    assert len(told) >= 5
    assert all(errno.errorcode[error] in message for message in told)


def heir_of(folder: Path) -> CheckpointRing:
    heir = CheckpointRing(folder, SETTINGS, file_system=FastDisk())
    for step in (30, 40):
        heir.save(step, writer(FileSystem(), str(step)), reason="interval", meta={"n": step})
    return heir


def test_after_a_kill_at_any_operation_the_next_process_saves_and_sweeps(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = operations_of(save_30, template, tmp_path / "count" / "checkpoints")

    for k in range(total):
        folder = tmp_path / f"kill_{k}" / "checkpoints"
        disk = FailingFileSystem(fail_at=k)
        ring = filled(template, folder, disk)
        with pytest.raises(Killed):
            save_30(ring, disk)
        with monkeypatch.context() as patch:
            patch.setattr(aside, "_started", lambda pid: 1)  # a new process with the same number
            heir = heir_of(folder)

        assert [c.step for c in heir.checkpoints()] == [0, 30, 40]
        assert sorted(path.name for path in folder.iterdir()) == [
            "step_00000000",
            "step_00000030",
            "step_00000040",
        ]


def test_a_read_only_directory_is_told_with_advice(tmp_path: Path) -> None:
    class ReadOnly(FileSystem):
        def make_folder(self, path: Path) -> None:
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    ring = CheckpointRing(tmp_path / "checkpoints", SETTINGS, file_system=ReadOnly())

    with pytest.raises(CheckpointError, match="Read-only file system: see that the disk has room"):
        ring.save(1, writer(FileSystem(), "1"), reason="interval", meta={})
