"""What every `CheckpointWriter` promises; another implementation is added to `WRITERS`."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from supervisor.errors import CheckpointDamaged, CheckpointError, StateNotFinite
from supervisor.ranks import RankPlace
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoint_files import read_section
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.manifest import MANIFEST
from supervisor.storage.checkpoints.parts import remove_parts
from supervisor.storage.files.file_system import FileSystem
from supervisor.training_state.state import FORMAT, STATE_FILE, digest
from supervisor.worker.checkpoints import rank_writers as follower_writer
from supervisor.worker.checkpoints.checkpoint_writer import (
    CapturedCheckpoint,
    CheckpointWriter,
    SingleWriter,
)
from supervisor.worker.checkpoints.rank_writers import FirstRankWriter, OtherRankWriter
from tests.storage.failing_file_system import FailingFileSystem, FastDisk, Killed

SETTINGS = CheckpointSettings(min_free_gib=0.0)
MOST_OPERATIONS = 200

Build = Callable[[Path, FileSystem, Callable[[], None]], CheckpointWriter]


def single(folder: Path, disk: FileSystem, before_publishing: Callable[[], None]) -> SingleWriter:
    return SingleWriter(CheckpointRing(folder, SETTINGS, file_system=disk), before_publishing)


class TwoRanks(FirstRankWriter):
    """Both sides of two ranks: the other one saves the same in a thread."""

    def __init__(self, folder: Path, disk: FileSystem, before: Callable[[], None]) -> None:
        ring = CheckpointRing(folder, SETTINGS, file_system=disk)
        super().__init__(ring, before, place=PLACES[0], attempt=1, timeout_s=2.0)
        self.other = OtherRankWriter(
            CheckpointRing(folder, SETTINGS, file_system=FastDisk()),
            lambda: None,
            place=PLACES[1],
            attempt=1,
            timeout_s=2.0,
        )

    def write(self, captured: CapturedCheckpoint) -> Checkpoint:
        def follow() -> None:
            with contextlib.suppress(CheckpointError):
                self.other.write(captured)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            return super().write(captured)
        except Killed:  # as the agent would, it ends the other rank with this one
            remove_parts(FastDisk(), self._ring.folder, lambda step, attempt: True)
            raise
        finally:
            thread.join()


PLACES = [RankPlace(rank=rank, world_size=2) for rank in range(2)]
WRITERS: dict[str, Build] = {"single": single, "two ranks": TwoRanks}
"""Name → how one is built over a folder and a disk, and called before it publishes."""


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a first rank that was killed; behind it the other one saves all of its own."""
    monkeypatch.setattr(follower_writer, "TELLS_WITHIN_S", 0.2)


@pytest.fixture(params=WRITERS.values(), ids=WRITERS.keys())
def build(request: pytest.FixtureRequest) -> Build:
    found: Build = request.param
    return found


def captured(step: int, value: float = 0.5, **given: Any) -> CapturedCheckpoint:
    weights = torch.full((40,), value + step)
    state = {"format": FORMAT, "models": {"model_0": {"weight": weights}}}
    sections = {"pipeline": {"seen": step}, "extra": {"words": ["a", "b"]}}
    return CapturedCheckpoint(
        step=step, state=state, meta={"risk": 0.1}, reason="test", sections=sections, **given
    )


def on_disk(folder: Path) -> CheckpointRing:
    """What another process finds."""
    return CheckpointRing(folder, SETTINGS)


def state_file(checkpoint: Checkpoint) -> Path:
    """Of the last rank."""
    return checkpoint.path / max(name for name in checkpoint.files if name.endswith(STATE_FILE))


def test_what_was_written_comes_back_with_every_section_and_a_digest(
    build: Build, tmp_path: Path
) -> None:
    writer, given = build(tmp_path, FastDisk(), lambda: None), captured(7)

    writer.write(given)

    found = on_disk(tmp_path).get(7)
    assert digest(writer.read(7)) == digest(given.state) == found.meta["digest"]
    folder = state_file(found).parent
    assert {name: read_section(folder, name) for name in given.sections} == given.sections
    assert (found.reason, found.meta["risk"]) == ("test", 0.1)
    names = {Path(name).name for name in found.files}
    assert names == {STATE_FILE, "pipeline.json", "extra.json"}
    assert not found.stable


def test_a_process_killed_at_any_operation_leaves_a_whole_checkpoint_or_none(
    build: Build, tmp_path: Path
) -> None:
    seen = set()
    for fail_at in range(MOST_OPERATIONS):
        folder = tmp_path / str(fail_at)
        build(folder, FastDisk(), lambda: None).write(captured(1))
        disk = FailingFileSystem(fail_at)
        writer = build(folder, disk, lambda: None)
        with contextlib.suppress(Killed):
            writer.write(captured(2))
        found = [c.step for c in on_disk(folder).checkpoints()]
        for step in found:
            assert digest(build(folder, FastDisk(), lambda: None).read(step)) == digest(
                captured(step).state
            )
        seen.add(tuple(found))
        if disk.operations <= fail_at:
            break
    assert seen == {(1,), (1, 2)}


def test_a_disk_that_refuses_is_told_and_harms_no_earlier_checkpoint(
    build: Build, tmp_path: Path
) -> None:
    refused = 0
    for fail_at in range(MOST_OPERATIONS):
        folder = tmp_path / str(fail_at)
        build(folder, FastDisk(), lambda: None).write(captured(1))
        disk = FailingFileSystem(fail_at, errno.ENOSPC)
        writer = build(folder, disk, lambda: None)
        try:
            writer.write(captured(2))
        except CheckpointError:
            refused += 1
        for checkpoint in on_disk(folder).checkpoints():
            on_disk(folder).verify(checkpoint)
        assert on_disk(folder).get(1).step == 1
        if disk.operations <= fail_at:
            break
    assert refused > 5


class FullDisk(FastDisk):
    """Takes names but no bytes."""

    is_full = True

    def write(self, path: Path, data: bytes) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no room", str(path))
        super().write(path, data)


@pytest.mark.parametrize(("full", "waits"), [(0, 1), (1, 0)])
def test_a_rank_whose_disk_is_full_keeps_no_other_waiting(
    full: int, waits: int, tmp_path: Path
) -> None:
    said, disk = ["", ""], FullDisk()
    writers: list[CheckpointWriter] = []
    for rank, kind in enumerate((FirstRankWriter, OtherRankWriter)):
        mine = disk if rank == full else FastDisk()
        ring = CheckpointRing(tmp_path, SETTINGS, file_system=mine)
        writers.append(kind(ring, lambda: None, place=PLACES[rank], attempt=1, timeout_s=60.0))

    def save(rank: int) -> None:
        try:
            writers[rank].write(captured(7))
            said[rank] = "saved"
        except CheckpointError as error:
            said[rank] = str(error)

    def save_both() -> None:
        threads = [threading.Thread(target=save, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)

    save_both()
    assert "no room" in said[full]
    assert "could not" in said[waits]

    disk.is_full = False
    save_both()  # after a rollback
    assert said == ["saved", "saved"]
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000007"]


@pytest.mark.parametrize("off", [0, 1])
def test_a_rank_whose_saving_is_switched_off_keeps_no_other_waiting(
    off: int, tmp_path: Path
) -> None:
    disk = FastDisk()
    first, other = (
        kind(
            CheckpointRing(tmp_path, SETTINGS, file_system=disk),
            lambda: None,
            place=PLACES[rank],
            attempt=1,
            timeout_s=60.0,
        )
        for rank, kind in enumerate((FirstRankWriter, OtherRankWriter))
    )

    (first, other)[off].saves_no_more()

    for step in (7, 9):
        with pytest.raises(CheckpointError, match="saves nothing any more"):
            (other, first)[off].write(captured(step))
    later = FirstRankWriter(
        CheckpointRing(tmp_path, SETTINGS, file_system=disk),
        lambda: None,
        place=PLACES[0],
        attempt=2,
        timeout_s=0.0,
    )
    with pytest.raises(CheckpointError, match="has not written its part"):
        later.write(captured(9))
    assert not any("99999999" in path.name for path in tmp_path.iterdir())  # of the attempt before


def test_the_manifest_comes_last_and_after_what_it_refers_to(build: Build, tmp_path: Path) -> None:
    order: list[str] = []

    class Watched(FastDisk):
        def write(self, path: Path, data: bytes) -> None:
            if path.name == MANIFEST:
                named = json.loads(data)["files"]
                order.append("manifest")
                assert all((path.parent / name).exists() for name in named)
            super().write(path, data)

        def sync_file(self, path: Path) -> None:
            order.append(path.name)

    build(tmp_path, Watched(), lambda: order.append("tape")).write(captured(3))

    assert order[0] == "tape"
    assert order[-2:] == ["manifest", MANIFEST]
    assert {STATE_FILE, "pipeline.json", "extra.json"} <= set(order[1:-2])


def test_a_tape_that_cannot_be_made_durable_is_no_checkpoint(build: Build, tmp_path: Path) -> None:
    def fails() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(CheckpointError, match="Input/output"):
        build(tmp_path, FastDisk(), fails).write(captured(3))

    assert on_disk(tmp_path).checkpoints() == []


def test_a_state_that_is_not_finite_is_written_only_for_a_person(
    build: Build, tmp_path: Path
) -> None:
    writer = build(tmp_path, FastDisk(), lambda: None)

    with pytest.raises(StateNotFinite, match=r"step 4 left out: model_0\.weight is not finite"):
        writer.write(captured(4, float("nan")))
    assert on_disk(tmp_path).checkpoints() == []
    writer.write(captured(5, float("nan"), abandoned=True))

    assert on_disk(tmp_path).checkpoints() == []
    assert set(writer.abandoned_steps()) == {5}


def test_only_what_is_read_back_unchanged_becomes_stable(build: Build, tmp_path: Path) -> None:
    writer = build(tmp_path, FastDisk(), lambda: None)
    for step in (1, 2):
        writer.write(captured(step))
    writer.write(captured(3, abandoned=True))
    damaged = state_file(on_disk(tmp_path).get(2))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    writer.mark_stable(1)
    with pytest.raises(CheckpointDamaged):
        writer.mark_stable(2)
    for step in (3, 4):  # abandoned; never written
        with pytest.raises(CheckpointError):
            writer.mark_stable(step)

    assert [(c.step, c.stable) for c in on_disk(tmp_path).checkpoints()] == [(1, True), (2, False)]


def test_a_step_is_written_once_and_an_abandoned_one_makes_way(
    build: Build, tmp_path: Path
) -> None:
    writer = build(tmp_path, FastDisk(), lambda: None)
    writer.write(captured(1))
    writer.write(captured(2, abandoned=True))

    for step in (1, 2):
        writer.write(captured(step, 0.75))

    values = [float(writer.read(step)["models"]["model_0"]["weight"][0]) for step in (1, 2)]
    assert values == [1.5, 2.75]
    assert set(writer.abandoned_steps()) == set()


def test_what_trouble_followed_is_not_kept_until_it_is_stable(build: Build, tmp_path: Path) -> None:
    writer = build(tmp_path, FastDisk(), lambda: None)
    steps = range(1, SETTINGS.keep_last + 3)
    for step in steps:
        writer.write(captured(step))
        if step == 1:
            writer.spoil(1)

    kept = [c.step for c in on_disk(tmp_path).checkpoints()]

    assert kept == list(steps[1:])  # the second is the one that will be stable next


def save_for_ever(name: str, folder: str) -> None:
    """Called in a process that is killed."""
    writer = WRITERS[name](Path(folder), FileSystem(), lambda: None)
    for step in range(1, 100_000):
        writer.write(captured(step))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WRITERS)
def test_a_real_process_killed_while_it_writes_leaves_only_whole_checkpoints(
    name: str, tmp_path: Path
) -> None:
    call = f"from {__name__} import save_for_ever; save_for_ever({name!r}, {str(tmp_path)!r})"
    process = subprocess.Popen([sys.executable, "-c", call], cwd=Path(__file__).parents[3])
    end = time.monotonic() + 140.0
    while max((p.name for p in tmp_path.glob("step_*")), default="") < "step_00000005":
        assert time.monotonic() < end
        time.sleep(0.003)
    process.kill()
    process.wait()

    found = on_disk(tmp_path).checkpoints()

    assert found[-1].step >= 5
    reader = WRITERS[name](tmp_path, FileSystem(), lambda: None)
    for checkpoint in found:
        assert digest(reader.read(checkpoint.step)) == checkpoint.meta["digest"]
