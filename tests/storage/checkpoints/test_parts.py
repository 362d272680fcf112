"""The parts of a checkpoint that several ranks write."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.storage.checkpoints.manifest import Checkpoint
from supervisor.storage.checkpoints.parts import (
    RANKS,
    part_of,
    part_path,
    publish_part,
    read_part,
    remove_parts,
    take_part,
)
from supervisor.storage.files.file_system import FileSystem

DISK = FileSystem()


def _fill(folder: Path) -> None:
    (folder / "state.pt").write_bytes(b"numbers")


def _publish(folder: Path, step: int = 7, attempt: int = 2, rank: int = 1) -> Path:
    planned = Checkpoint(step=step, path=folder, meta={"digest": "abc"})
    return publish_part(DISK, folder, planned, (attempt, rank), _fill)


def test_a_part_is_absent_until_it_is_whole(tmp_path: Path) -> None:
    path = part_path(tmp_path, 7, 2, 1)
    assert read_part(DISK, path, 7) is None

    def breaks(folder: Path) -> None:
        _fill(folder)
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        publish_part(DISK, tmp_path, Checkpoint(step=7, path=path), (2, 1), breaks)
    assert list(tmp_path.iterdir()) == []

    assert _publish(tmp_path) == path
    part = read_part(DISK, path, 7)
    assert part is not None
    assert part.meta == {"digest": "abc"}


def test_a_part_of_another_step_is_refused(tmp_path: Path) -> None:
    _publish(tmp_path, step=7).rename(part_path(tmp_path, 8, 2, 1))

    with pytest.raises(CheckpointDamaged):
        read_part(DISK, part_path(tmp_path, 8, 2, 1), 8)


def test_a_part_that_was_taken_leaves_its_folder_until_the_save_is_over(tmp_path: Path) -> None:
    path = _publish(tmp_path)
    part = read_part(DISK, path, 7)
    assert part is not None

    files = take_part(DISK, part, tmp_path / "rank_1")

    assert list(files) == ["rank_1/state.pt"]
    assert (tmp_path / "rank_1/state.pt").read_bytes() == b"numbers"
    assert path.is_dir()
    remove_parts(DISK, tmp_path, lambda step, attempt: step == 7)
    assert not path.exists()


def test_only_the_parts_that_are_meant_are_removed(tmp_path: Path) -> None:
    old, new = _publish(tmp_path, attempt=1), _publish(tmp_path, attempt=3, step=9)

    remove_parts(DISK, tmp_path, lambda step, attempt: attempt < 3)

    assert (old.exists(), new.exists()) == (False, True)


def test_each_rank_reads_its_own_part_of_a_checkpoint(tmp_path: Path) -> None:
    whole = Checkpoint(step=7, path=tmp_path, meta={"digest": "a", RANKS: {"1": {"digest": "b"}}})

    assert part_of(whole, 0, 2).path == tmp_path / "rank_0"
    assert part_of(whole, 1, 2).meta["digest"] == "b"
    with pytest.raises(CheckpointError, match="saved by 2 ranks, and 3 ranks are to go on"):
        part_of(whole, 0, 3)
    with pytest.raises(CheckpointError, match="saved by one rank, and 2 ranks"):
        part_of(Checkpoint(step=7, path=tmp_path), 0, 2)
