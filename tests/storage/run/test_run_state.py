"""What is said of a Python or torch that nobody has tried."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.errors import RunDirectoryError
from supervisor.storage.run.run_state import (
    RunState,
    has_live_parent,
    is_run,
    load_run_state,
    new_run_state,
    save_run_state,
    untried_versions,
)
from supervisor.storage.run.rundir import RunDirectory


def state_of(script: str = "train.py") -> RunState:
    return new_run_state(
        command=["supervisor", "run", script, "--lr", "1"],
        kind="script",
        script=script,
        arguments=["--lr", "1"],
        resume_arguments=["--resume"],
        policy="default",
        config="default",
    )


def test_a_run_state_comes_back_as_it_was(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path / "runs" / "a")
    state = replace(state_of(), state="completed", exit_code=0, attempts=3)

    save_run_state(rundir, state)

    assert load_run_state(rundir) == state
    assert state.versions["torch"]
    assert rundir.run_json.stat().st_mode & 0o777 == 0o600
    assert is_run(rundir.root)
    assert not is_run(tmp_path)


def test_the_environment_is_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "a-very-secret-thing")
    rundir = RunDirectory(tmp_path)

    save_run_state(rundir, state_of())

    assert "a-very-secret-thing" not in rundir.run_json.read_text()


def test_fields_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    rundir.run_json.write_text(json.dumps({"script": "a.py", "colour": "red"}))

    assert load_run_state(rundir) == RunState(script="a.py")


@pytest.mark.parametrize(
    ("text", "what"), [(None, "no run.json"), ("{", "damaged"), ("[1]", "damaged")]
)
def test_a_directory_that_is_no_run_is_told_with_advice(
    text: str | None, what: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)

    with pytest.raises(RunDirectoryError, match=f"{what}.*: give the directory that") as told:
        load_run_state(RunDirectory(tmp_path))

    assert str(tmp_path) in str(told.value)


def test_a_parent_lives_if_its_number_still_means_the_same_process() -> None:
    state = state_of()

    assert has_live_parent(state)
    assert not has_live_parent(replace(state, pid_created=state.pid_created - 100.0))
    assert not has_live_parent(replace(state, state="completed"))
    assert not has_live_parent(replace(state, host="elsewhere"))
    assert state.pid == os.getpid()


@pytest.mark.parametrize(
    ("python", "torch"),
    [("3.10.0", "2.6.0"), ("3.13.9", "2.14.1+cu130"), ("3.9.1", "none"), ("3.12.1", "2.14.0a0")],
)
def test_nothing_is_said_of_what_was_tried(python: str, torch: str) -> None:
    assert untried_versions({"python": python, "torch": torch}) == ""


def test_one_line_names_what_is_newer() -> None:
    both = untried_versions({"python": "3.14.0rc1", "torch": "2.15.0.dev20270101+cpu"})
    one = untried_versions({"python": "3.12.1", "torch": "3.0.0"})

    assert "Python 3.14.0rc1" in both
    assert "torch 2.15.0.dev20270101+cpu (tried up to 2.14)" in both
    assert "torch 3.0.0" in one
    assert "3.12" not in one
    assert "\n" not in both
