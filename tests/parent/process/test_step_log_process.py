"""The process that logs the steps: what is said when it fails."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

from supervisor.config import load_config, save_resolved
from supervisor.parent.process.step_log_process import start_step_log
from supervisor.settings import LogSettings
from supervisor.step_logs.step_log import missing_package
from supervisor.storage.run.rundir import RunDirectory


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
    assert process.end() is None
    assert process.end() is None
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
    assert process.end() is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert missing_package(LogSettings()) is None
    told = missing_package(LogSettings(tensorboard=True))

    assert told is not None
    assert "log.tensorboard: tensorboard is missing: pip install" in told
