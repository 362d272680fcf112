"""The disk refuses writes of ours, or of the script's: no run ends by it, nothing is lost by it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.scenarios.runs import QUICK, Ended, again, supervised, supervisor_command, train_plainly

SCRIPT = """
import hashlib, os, sys, time, torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1); opt = torch.optim.Adam(net.parameters(), 1e-2)
def at(step): pass
{more}
for step in range(1, 61):
    x = torch.randn(32, 8); loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print("step", step, round(loss.item(), 5), flush=True)
    at(step)
print("FINAL", hashlib.sha1(net.weight.detach().numpy().tobytes()).hexdigest()[:12], flush=True)
{end}
"""
WAITS = """
def at(step):
    while step == 40 and not os.path.exists("go"): time.sleep(0.02)
"""
FILLS = """
try:
    with open("disk/samples", "wb", buffering=0) as file:
        while file.write(bytes(4096)): pass
except OSError: pass
"""
SETTINGS = ("checkpoint.every_steps=15", "checkpoint.background=false", "checkpoint.min_free_gib=0")


def script(more: str = "", end: str = "") -> str:
    return SCRIPT.format(more=more, end=end)


@pytest.fixture(scope="module")
def final(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last line of the training that nothing disturbs."""
    return train_plainly(tmp_path_factory.mktemp("plain"), script()).stdout.splitlines()[-1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip("needs root, and to be allowed to mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=False)


class Live:
    """A run under way, whose script waits at step 40 for the file `go`."""

    def __init__(self, folder: Path, run: Path, *words: str, text: str = script(WAITS)) -> None:
        (folder / "script.py").write_text(text)
        self.folder, self.run = folder, run
        given = [f"--set={setting}" for setting in (*QUICK, *SETTINGS)]
        line = [*supervisor_command(), "run", "--run-dir", str(run), *given, *words, "script.py"]
        with (folder / "err").open("w") as errors:
            self.process = subprocess.Popen(
                line,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "SUPERVISOR_CASES": str(folder / "c")},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.lines: list[str] = []

    def until(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith(words):
                return
        raise AssertionError(self.errors)

    def told(self, words: str) -> None:
        self.wait_for(lambda: words in self.errors)

    def wait_for(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < until, self.errors
            assert self.process.poll() is None, self.errors
            time.sleep(0.05)

    def kill_worker(self) -> None:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "--attempt" in child.cmdline() and "subreaper.py" not in str(child.cmdline()):
                    child.kill()

    def go(self) -> Ended:
        (self.folder / "go").touch()
        rest, _ = self.process.communicate(timeout=240)
        lines = "\n".join(self.lines) + "\n" + rest
        return Ended(self.folder, self.process.returncode, lines, self.errors)

    @property
    def errors(self) -> str:
        return (self.folder / "err").read_text()


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return ballast


def journal(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


# --- the disk of the run -----------------------------------------------------------------------


def test_a_script_that_fills_the_disk_at_its_end_is_completed_and_never_trained_again(
    small_disk: Path, final: str, tmp_path: Path
) -> None:
    live = Live(tmp_path, small_disk / "run", text=script(end=FILLS))

    ended = live.go()

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("FINAL") == 1
    assert final in ended.stdout
    assert "No space left on device: what is written here is kept" in ended.stderr
    assert "attempt 2" not in ended.stderr
    assert json.loads((small_disk / "run" / "run.json").read_text())["state"] == "completed"
    # Room again: the run is over all the same.
    (small_disk / "samples").unlink()
    line = [*supervisor_command(), "run", "--or-resume", "--run-dir", "disk/run", "script.py"]
    later = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (later.returncode, later.stdout) == (0, "")


def test_a_worker_that_is_killed_on_a_full_disk_goes_on_when_there_is_room(
    small_disk: Path, final: str, tmp_path: Path
) -> None:
    live = Live(tmp_path, small_disk / "run")
    live.until("step 40 ")
    ballast = fill(small_disk)

    live.kill_worker()
    live.told("attempt 2 waits for it")
    ballast.unlink()
    ended = live.go()

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == final
    events = journal(live.run)
    kinds = [event["kind"] for event in events]
    assert kinds.count("worker_exited") == kinds.count("attempt_started") == 2
    (resumed,) = [event for event in events if event["kind"] == "resumed"]
    assert (resumed["from_step"], resumed["exactness"]) == (30, "exact")


def test_a_disk_that_is_full_to_the_end_costs_the_record_and_not_the_training(
    small_disk: Path, final: str, tmp_path: Path
) -> None:
    live = Live(tmp_path, small_disk / "run", "--set=report.enabled=true")
    live.until("step 40 ")
    fill(small_disk)

    ended = live.go()

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == final
    assert ended.stderr.count("kept in memory and tried again") <= 1
    assert "the report could not be written" in ended.stderr
    assert "attempt 2" not in ended.stderr


def test_a_run_directory_that_is_deleted_is_told_and_the_training_ends_as_it_would(
    final: str, tmp_path: Path
) -> None:
    live = Live(tmp_path, tmp_path / "run")
    live.until("step 40 ")

    shutil.rmtree(live.run, ignore_errors=True)  # the parent may write into it at once
    live.told("was removed while the run went on")
    ended = live.go()

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == final
    assert ended.stderr.count("warning: the run directory") == 1
    assert "attempt 2" not in ended.stderr


def test_files_of_ours_that_outgrow_a_limit_cost_the_training_nothing(
    final: str, tmp_path: Path
) -> None:
    limited = script("import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))")

    ended = supervised(tmp_path, limited, settings=SETTINGS, executed=True)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == final
    assert "attempt 2" not in ended.stderr
    # What the worker could not write itself, the parent has written.
    assert (
        json.loads((ended.run_dir / "exits/attempt_1/rank_0.json").read_text())["last_step"] == 59
    )
    assert [each.get("found") for each in ended.events("warning")].count(
        "checkpoint not saved"
    ) >= 2


# --- the script's own disk ---------------------------------------------------------------------

SAVES = """
def at(step):
    if step == 50:  # torch 2.6 says nothing of a few bytes
        saved = [net.state_dict(), torch.zeros(100_000)]
        torch.save(saved, "/dev/full" if os.path.exists("full") else "saved.pt")
"""


@pytest.mark.parametrize("freed", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_a_script_whose_own_disk_is_full_loses_no_update(
    freed: bool, final: str, tmp_path: Path
) -> None:
    (tmp_path / "full").touch()
    live = Live(tmp_path, tmp_path / "run", "--set=restart.backoff_s=4", text=script(SAVES))

    live.told("attempt 2 ended")
    if freed:
        (tmp_path / "full").unlink()
    ended = live.go()

    assert ended.returncode == (0 if freed else 70), ended.stderr
    assert (final in ended.stdout) is freed
    assert not [event for event in ended.events() if event.get("skip_steps")]
    assert not ended.events("update_skipped")
    if not freed:
        (gave_up,) = ended.events("gave_up")
        assert gave_up["reason"].startswith("crash limit: 3 crashes")
        assert "a disk of the script's is full, read-only or failing" in gave_up["reason"]


# --- damage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose supervisor and worker were killed at step 40."""
    folder = tmp_path_factory.mktemp("killed")
    live = Live(folder, folder / "run")
    live.until("step 40 ")
    live.wait_for(lambda: (live.run / "checkpoints" / "step_00000030" / "manifest.json").exists())
    worker = psutil.Process(live.process.pid).children(recursive=True)
    live.process.send_signal(signal.SIGKILL)
    live.process.communicate()
    psutil.wait_procs(worker, timeout=60)
    (folder / "go").touch()
    return folder


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("steps/rank_0.steps", 3),
        pytest.param("run.json", 200, marks=pytest.mark.exhaustive),
        pytest.param("events.jsonl", 120, marks=pytest.mark.exhaustive),
        pytest.param("", 0, marks=pytest.mark.exhaustive),
    ],
)
def test_a_flipped_bit_is_set_aside_and_the_checkpoints_are_used(
    name: str, at: int, killed: Path, final: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(killed, folder)
    state = json.loads((folder / "run" / "run.json").read_text())
    if name:
        flip(folder / "run" / name, at)

    words = ("resume", "run", "--set=report.enabled=true")
    code = Ended(folder, 0, "", "")
    ended = again(code, *words)

    assert state["state"] == "running"
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == final
    assert ended.events("resumed")[-1]["exactness"] == "exact"
    assert "the supervisor before this one, process" in ended.stderr
    if name:
        assert f"{name}.damaged" in ended.stderr
        assert (folder / "run" / f"{name}.damaged").exists()
    report = json.loads((folder / "run" / "report" / "report.json").read_text())
    assert any("The supervisor was killed" in str(each) for each in report["incidents"])
