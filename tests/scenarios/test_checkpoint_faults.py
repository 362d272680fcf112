"""Checkpoints and disks that let a run down: it uses what is whole, and its training goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from supervisor.storage.checkpoints.manifest import MANIFEST
from supervisor.training_state.state import STATE_FILE
from tests.scenarios.loop_styles import LOOP_STYLES, PRELUDE, script
from tests.scenarios.runs import Ended, again, differences, supervised, train_plainly

LOADER = "epochs over a shuffling loader"
SAVED = ("checkpoint.every_steps=4", "checkpoint.background=false", "checkpoint.min_free_gib=0")
NEWEST = 28
"""Step of the newest checkpoint of a run that died right behind its update 30."""

AFTER_STEP = """
        optimizer.step()
        done += 1
        if done == 10: disturb()
        if done == 25: repair()
"""
"""Put into the loop of `LOADER`: something happens to the disk in mid-run, and is mended later."""


@dataclass(frozen=True)
class Interrupted:
    """A run that was killed, and what it would have ended with."""

    expected: Ended
    killed: Ended

    def copy_to(self, folder: Path) -> Ended:
        shutil.copytree(self.killed.folder, folder)
        return replace(self.killed, folder=folder)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    """One run for all tests of this file: killed, and given up at once."""
    folder = tmp_path_factory.mktemp("interrupted")
    expected = train_plainly(folder / "plain", script(LOADER))
    killed = supervised(
        folder / "killed",
        script(LOADER),
        settings=(*SAVED, "restart.crash_limit=1"),
        faults="[{kind: sigkill, step: 30}]",
    )
    assert killed.returncode == 70, killed.stderr
    # Its folder moves: a resume goes back to where a run was started, as long as that is there.
    return Interrupted(expected, replace(killed, folder=killed.folder.rename(folder / "kept")))


def flip_a_byte(checkpoint: Path) -> None:
    path = checkpoint / STATE_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / STATE_FILE, 100)


def remove_the_manifest(checkpoint: Path) -> None:
    (checkpoint / MANIFEST).unlink()


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, remove_the_manifest])
def test_a_damaged_checkpoint_is_passed_over_for_the_newest_good_one(
    damage: Callable[[Path], None], interrupted: Interrupted, tmp_path: Path
) -> None:
    ended = interrupted.copy_to(tmp_path / "copy")
    damage(ended.run_dir / "checkpoints" / f"step_{NEWEST:08d}")

    resumed = again(ended, "resume", "run", "--set", "faults=[]")

    assert resumed.returncode == 0, resumed.stderr
    rejected = resumed.events("checkpoint_rejected")
    assert {e["step"] for e in rejected} == {NEWEST}
    assert all("damaged" in e["reason"] or "older" in e["reason"] for e in rejected)
    assert [e["from_step"] for e in resumed.events("resumed")] == [NEWEST - 4]
    assert [e["exactness"] for e in resumed.events("resumed")] == ["exact"]
    assert differences(interrupted.expected.result(), resumed.result()) == []


def test_a_run_whose_checkpoints_are_all_damaged_starts_from_nothing(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    ended = interrupted.copy_to(tmp_path / "copy")
    for checkpoint in (ended.run_dir / "checkpoints").glob("step_*"):
        flip_a_byte(checkpoint)

    resumed = again(ended, "resume", "run", "--set", "faults=[]")

    assert resumed.returncode == 0, resumed.stderr
    assert resumed.events("checkpoint_rejected")
    assert resumed.events("resumed") == []
    assert differences(interrupted.expected.result(), resumed.result()) == []


def test_half_written_and_foreign_folders_are_no_checkpoints(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    ended = interrupted.copy_to(tmp_path / "copy")
    checkpoints = ended.run_dir / "checkpoints"
    newest = checkpoints / f"step_{NEWEST:08d}"
    shutil.copytree(newest, checkpoints / f".staged-{NEWEST + 4:08d}-elsewhere-1-1-0")
    shutil.copytree(newest, checkpoints / "step_99")
    shutil.copytree(newest, checkpoints / "backup of step_00000028")
    (checkpoints / "notes").mkdir()
    (checkpoints / "step_00000036").write_text("a file of this name")

    resumed = again(ended, "resume", "run", "--set", "faults=[]")

    assert resumed.returncode == 0, resumed.stderr
    assert resumed.events("checkpoint_rejected") == []
    assert [e["from_step"] for e in resumed.events("resumed")] == [NEWEST]
    assert differences(interrupted.expected.result(), resumed.result()) == []
    assert (checkpoints / "step_99").is_dir()
    assert (checkpoints / "notes").is_dir()


# --- disks that refuse in mid-run -----------------------------------------------------------------


def disturbed(disturb: str, repair: str = "pass") -> str:
    """The script of `LOADER`, in which the two statements are run after steps 10 and 25."""
    loop = LOOP_STYLES[LOADER].replace("\n        optimizer.step()\n", AFTER_STEP)
    before = f"""
import os, shutil, subprocess
done = 0
def disturb():
    {disturb}
def repair():
    {repair}
"""
    return PRELUDE + before + loop + "\ntorch.save(result, sys.argv[-1])\n"


def assert_trained_to_the_end(ended: Ended, expected: Ended) -> None:
    assert ended.returncode == 0, ended.stderr
    assert differences(expected.result(), ended.result()) == []
    assert "Traceback" not in ended.stderr
    assert ended.events("restart") == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a disk of 8 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = sys.platform == "linux" and shutil.which("mount") and os.geteuid() == 0
    line = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", str(folder)]
    if not mounted or subprocess.run(line, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_costs_checkpoints_but_not_the_training(
    small_disk: Path, interrupted: Interrupted, tmp_path: Path
) -> None:
    filler = str(small_disk / "filler")
    fill = f"subprocess.run(['dd', 'if=/dev/zero', 'of={filler}', 'bs=1k'], capture_output=True)"
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "run").symlink_to(small_disk, target_is_directory=True)

    # A single checkpoint by then: no older one can be removed for the sake of the next.
    settings = (*SAVED, "checkpoint.every_steps=8")
    ended = supervised(folder, disturbed(fill, f"os.remove({filler!r})"), settings=settings)

    assert_trained_to_the_end(ended, interrupted.expected)
    saved = [e["step"] for e in ended.events("checkpoint_saved")]
    assert [step for step in saved if step < 25] == [8]
    assert saved[-1] > 25, "there is room again, and checkpoints go on"
    warned = " ".join(e["message"] for e in ended.events("warning"))
    assert "checkpoint not saved" in warned or "could not be written" in warned


def test_a_checkpoint_folder_that_becomes_a_file_costs_only_checkpoints(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    replace_it = "shutil.rmtree('run/checkpoints'); open('run/checkpoints', 'w').close()"

    ended = supervised(
        tmp_path / "run",
        disturbed(replace_it, "os.remove('run/checkpoints')"),
        settings=SAVED,
    )

    assert_trained_to_the_end(ended, interrupted.expected)
    saved = [e["step"] for e in ended.events("checkpoint_saved")]
    assert [step for step in saved if step < 25] == [4, 8]
    assert saved[-1] > 25
    assert any("checkpoint not saved" in e["message"] for e in ended.events("warning"))


def test_a_checkpoint_folder_made_unwritable_costs_only_checkpoints(
    interrupted: Interrupted, tmp_path: Path
) -> None:
    if os.geteuid() == 0 and not _can_be_immutable(tmp_path):
        pytest.skip("root may write anywhere on this file system")
    close, open_again = "os.chmod('run/checkpoints', 0o500)", "os.chmod('run/checkpoints', 0o700)"
    if os.geteuid() == 0:
        close = "subprocess.run(['chattr', '+i', 'run/checkpoints'], check=True)"
        open_again = "subprocess.run(['chattr', '-i', 'run/checkpoints'], check=True)"

    ended = supervised(tmp_path / "run", disturbed(close, open_again), settings=SAVED)

    assert_trained_to_the_end(ended, interrupted.expected)
    saved = [e["step"] for e in ended.events("checkpoint_saved")]
    assert [step for step in saved if step < 25] == [4, 8]
    assert saved[-1] > 25
    assert any("checkpoint not saved" in e["message"] for e in ended.events("warning"))


def _can_be_immutable(folder: Path) -> bool:
    probe = folder / "probe"
    probe.mkdir()
    if shutil.which("chattr") is None:
        return False
    made = subprocess.run(["chattr", "+i", str(probe)], capture_output=True).returncode == 0
    subprocess.run(["chattr", "-i", str(probe)], capture_output=True)
    return made
