"""The process that logs the steps: what is said when it fails."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

from supervisor.config import load_config, save_resolved
from supervisor.parent.process.side_processes import LivePictures, SaveForDeadRanks, start_step_log
from supervisor.records import StepRecord
from supervisor.settings import LogSettings
from supervisor.step_logs.step_log import missing_package
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder


def run_with_log(root: Path) -> RunDirectory:
    rundir = RunDirectory(root)
    rundir.make(rundir.root / "logs")
    save_resolved(load_config(overrides=["log.tensorboard=true"]), rundir.config_yaml)
    return rundir


def test_nothing_is_started_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert start_step_log(RunDirectory(tmp_path), LogSettings()) is None


def test_it_ends_when_the_parent_closes_its_input(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    process = start_step_log(run_with_log(tmp_path), LogSettings(tensorboard=True))

    assert process is not None
    assert process.look() is None
    assert process.stop() is None
    assert process.stop() is None
    assert list((tmp_path / "tensorboard").glob("*tfevents*"))


def test_a_log_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("in the way")
    process = start_step_log(run_with_log(tmp_path), LogSettings(tensorboard=True))
    assert process is not None

    problem = None
    while problem is None:
        time.sleep(0.05)
        problem = process.look()

    assert problem.startswith("the steps are no longer logged: ")
    assert "File exists" in problem
    assert process.look() is None
    assert process.stop() is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert missing_package(LogSettings()) is None
    told = missing_package(LogSettings(tensorboard=True))

    assert told is not None
    assert "log.tensorboard: tensorboard is missing: pip install" in told


PNG = b"\x89PNG"


def test_a_picture_is_drawn_when_its_step_has_come_and_not_again_at_once(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    recorder = FlightRecorder(rundir.steps(0), 1)
    for step in range(60):
        seen = {"kl": 4.0 - step / 20}
        record = StepRecord(step=step, loss=2.0, loss_seen=True, observed=seen)
        recorder.append(record, time=1e9 + step)
    recorder.close()
    pictures = LivePictures(rundir, 50)

    pictures.look(49)
    assert pictures._process is None
    pictures.look(59)
    assert pictures._process is not None
    assert pictures._process.wait() == 0
    pictures.look(100)

    assert pictures._process is None
    for name in ("overview", "observed"):
        assert (rundir.report / f"{name}.png").read_bytes().startswith(PNG)
    assert not (rundir.report / "report.json").exists()


def test_without_the_setting_nothing_is_drawn(tmp_path: Path) -> None:
    pictures = LivePictures(RunDirectory(tmp_path), None)

    pictures.look(10**6)

    assert pictures._process is None
    pictures.stop()


def test_what_fails_in_it_is_told_in_words(tmp_path: Path) -> None:
    unneeded = SaveForDeadRanks(RunDirectory(tmp_path), {"0": [str(tmp_path / "nowhere")]})
    process = SaveForDeadRanks(RunDirectory(tmp_path), {"0": [str(tmp_path / "nowhere")]})

    unneeded.stop()
    said = process.save(3)

    assert "No such file or directory" in str(said)
