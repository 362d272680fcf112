"""`supervisor run` and `supervisor resume`: what reaches the supervisor, what is refused before."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from supervisor.config import load_config, load_policy, save_resolved
from supervisor.parent import supervisor as parent_module
from supervisor.parent.process.launch import LaunchSpec
from supervisor.storage.run.run_state import RunState
from tests.cli.conftest import Cli, make_run


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[LaunchSpec]:
    """Everything that a stand-in for the supervisor was asked to run; its exit code is 75."""
    specs: list[LaunchSpec] = []

    class StandIn:
        def __init__(self, spec: LaunchSpec, *, node_role: object) -> None:
            specs.append(spec)

        def run(self) -> SimpleNamespace:
            return SimpleNamespace(exit_code=75)

    monkeypatch.setattr(parent_module, "Supervisor", StandIn)
    return specs


# What belongs to whom


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (("train.py",), ()),
        (("train.py", "--epochs", "3"), ("--epochs", "3")),
        (("train.py", "--quiet", "--set", "seed=1"), ("--quiet", "--set", "seed=1")),
        (("--quiet", "train.py", "--help"), ("--help",)),
        (("--set", "seed=1", "train.py", "-m", "x"), ("-m", "x")),
        (("--set=seed=1", "train.py", "--"), ("--",)),
        (("--", "train.py", "--", "a b"), ("--", "a b")),
        (("--resume-args", "--resume", "train.py", "train.py"), ("train.py",)),
        (("-m", "json.tool", "--quiet"), ("--quiet",)),
    ],
)
def test_everything_after_the_script_belongs_to_it(
    cli: Cli,
    script: Path,
    launched: list[LaunchSpec],
    words: tuple[str, ...],
    arguments: tuple[str, ...],
) -> None:
    code, _, err = cli("run", *words)

    assert (code, err) == (75, "")
    assert launched[0].arguments == arguments
    assert launched[0].command == ("supervisor", "run", *words)


def test_options_before_the_script_reach_the_supervisor(
    cli: Cli, script: Path, launched: list[LaunchSpec], tmp_path: Path
) -> None:
    cli(
        *("run", "--run-dir", "out/a", "--policy", "fp16", "--config", "llm", "--quiet"),
        *("--set", "seed=3", "--set", "policy.lr_factor=0.9"),
        *("--resume-args", "--from 'last one'", "train.py:later"),
    )

    spec = launched[0]
    assert (spec.kind, spec.target, spec.function) == ("function", "train.py", "later")
    assert spec.run_dir == Path("out/a")
    assert (spec.policy.name, spec.policy.lr_factor) == ("fp16", 0.9)
    assert (spec.settings.name, spec.settings.seed) == ("llm", 3)
    assert spec.resume_arguments == ("--from", "last one")
    assert spec.quiet


def test_the_default_run_directory_has_the_scripts_name_and_the_time(
    cli: Cli, script: Path, launched: list[LaunchSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda _: "20260102-030405")
    Path("runs/train-20260102-030405").mkdir(parents=True)

    cli("run", "train.py")

    assert launched[0].run_dir == Path("runs/train-20260102-030405-2")


def test_a_module_is_found_without_importing_it(
    cli: Cli, launched: list[LaunchSpec], tmp_path: Path
) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "train.py").touch()

    code, _, err = cli("run", "-m", "mine.train", "a")

    assert (code, err) == (75, "")
    assert (launched[0].kind, launched[0].target) == ("module", "mine.train")


# What is refused before anything is started


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nowhere.py",), "nowhere.py: no such file"),
        (("nowhere.py:train",), "nowhere.py: no such file"),
        ((".",), ".: is a folder"),
        (("train.py:trian",), "train.py: no function 'trian'; did you mean train?"),
        (("train.py:train", "--epochs", "3"), "train.py:train: --epochs: no such parameter"),
        (("--resume-args=3", "train.py:train"), "train.py:train: '3': no parameter is left"),
        (("-m", "nowhere.train"), "-m nowhere.train: no such module"),
        (("-m", "json.nowhere"), "-m json.nowhere: no such module"),
        (("-m",), "run: -m needs the name of a module"),
        (("--nproc-per-node", "0", "train.py"), "run: --nproc-per-node 0: give a number from 1"),
        (("--nproc-per-node=many", "train.py"), "run: --nproc-per-node many: give a number"),
        (("--nnodes", "2", "train.py"), "run: --nnodes: needs --run-dir, one folder on a disk"),
        (("--nnodes", "2", "--run-dir", "r", "train.py"), "run: --nnodes: several nodes have to"),
        (("--nnodes", "3:2", "train.py"), "run: --nnodes 3:2: give a number from 1, or MIN:MAX"),
        (("--master-port", "x", "train.py"), "run: argument --master-port"),
        (("--policy", "fp61", "train.py"), "no policy is called 'fp61'; did you mean fp16?"),
        (("--config", "x.yaml", "train.py"), "x.yaml: no such file"),
        (("--set", "sed=1", "train.py"), "--set sed: unknown key; did you mean seed?"),
        (("--set", "detectors.los_anomaly.k=1", "train.py"), "config default: detectors.los_"),
        (("--resume-args", "'", "train.py"), '--resume-args "\'": No closing quotation'),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_started(
    cli: Cli,
    script: Path,
    launched: list[LaunchSpec],
    words: tuple[str, ...],
    expected: str,
) -> None:
    code, _, err = cli("run", *words)

    assert code == 64
    assert err.startswith(f"supervisor: error: {expected}")
    assert not launched
    assert not Path("runs").exists()


def test_a_directory_that_holds_a_run_or_anything_else_is_refused(
    cli: Cli, script: Path, launched: list[LaunchSpec], tmp_path: Path
) -> None:
    make_run(tmp_path / "old", RunState(state="completed"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()

    held = cli("run", "--run-dir", "old", "train.py")
    full = cli("run", "--run-dir", "full", "train.py")
    file = cli("run", "--run-dir", "train.py", "train.py")

    assert held[0] == full[0] == file[0] == 64
    assert "old: holds another run" in held[2]
    assert "full: is not empty" in full[2]
    assert "train.py: is a file" in file[2]
    assert not launched


def test_an_empty_directory_is_taken(
    cli: Cli, script: Path, launched: list[LaunchSpec], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()

    cli("run", "--run-dir", "empty", "train.py")

    assert launched[0].run_dir == Path("empty")


# Resume


@pytest.fixture
def interrupted(tmp_path: Path, script: Path) -> RunState:
    """A run in `tmp_path/run` that was started in `tmp_path` and interrupted."""
    state = RunState(
        state="interrupted",
        script="train.py",
        arguments=("--epochs", "3"),
        resume_arguments=("--again",),
        cwd=str(tmp_path),
        command=("supervisor", "run", "train.py"),
    )
    rundir = make_run(tmp_path / "run", state)
    save_resolved(load_config(overrides=["seed=5"]), rundir.config_yaml)
    save_resolved(load_policy("cautious"), rundir.policy_yaml)
    return state


def test_resume_continues_as_the_run_was_begun_from_any_folder(
    cli: Cli,
    interrupted: RunState,
    launched: list[LaunchSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    code, _, err = cli("resume", "../run", "--from", "latest", "--set", "policy.lr_factor=0.4")

    spec = launched[0]
    assert (code, err) == (75, "")
    assert (spec.kind, spec.target, spec.arguments) == ("script", "train.py", ("--epochs", "3"))
    assert spec.resume_arguments == ("--again",)
    assert spec.run_dir.resolve() == (tmp_path / "run").resolve()
    assert (spec.settings.seed, spec.policy.name, spec.policy.lr_factor) == (5, "cautious", 0.4)
    assert spec.is_resume
    assert spec.resume_from == "latest"
    assert Path.cwd() == tmp_path.resolve()


@pytest.mark.parametrize(
    ("changes", "words", "expected"),
    [
        ({"state": "completed"}, (), "ran to its end"),
        ({"cwd": "/nowhere", "script": "gone.py"}, (), "is gone: put it back"),
        ({}, ("--from", "yesterday"), "--from yesterday: give last-stable, latest or a step"),
        ({}, ("--set", "sed=1"), "--set sed: unknown key; did you mean seed?"),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    cli: Cli,
    interrupted: RunState,
    launched: list[LaunchSpec],
    tmp_path: Path,
    changes: dict[str, str],
    words: tuple[str, ...],
    expected: str,
) -> None:
    make_run(tmp_path / "run", replace(interrupted, **changes))

    code, _, err = cli("resume", "run", *words)

    assert code == 64
    assert expected in err
    assert not launched


def test_a_run_that_ended_goes_back_to_a_checkpoint_that_is_named(
    cli: Cli, interrupted: RunState, launched: list[LaunchSpec], tmp_path: Path
) -> None:
    make_run(tmp_path / "run", replace(interrupted, state="completed"))

    code, _, err = cli("resume", "run", "--from", "40")

    assert (code, err) == (75, "")
    assert launched[0].resume_from == "40"


def test_a_run_that_still_runs_is_not_resumed(
    cli: Cli, interrupted: RunState, launched: list[LaunchSpec], tmp_path: Path
) -> None:
    alive = replace(
        interrupted,
        state="running",
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_created=psutil.Process().create_time(),
    )
    make_run(tmp_path / "run", alive)

    code, _, err = cli("resume", "run")

    assert code == 64
    assert f"still running (process {os.getpid()})" in err
    assert not launched


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ("[{kind: bogus, step: 3}]", "unknown kind 'bogus'"),
        ("[{kind: nan_los, step: 3}]", "did you mean nan_loss?"),
        ("[{kind: nan_loss, stepp: 3}]", "did you mean step?"),
        ("[{kind: nan_loss, step: three}]", "step: expected a whole number, got 'three'"),
        ("[{kind: nan_loss, step: -1}]", "step is at least 0"),
        ("[{kind: sigkill, step: 1, moment: later}]", "'later' is none of forward"),
        ("[{step: 3}]", "unknown kind ''"),
    ],
)
def test_a_wrong_fault_starts_nothing(cli: Cli, script: Path, faults: str, expected: str) -> None:
    code, out, errors = cli("run", "--set", f"faults={faults}", str(script))

    assert (code, out) == (64, "")
    assert expected in errors
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("notes.ipynb", "nbconvert --to script"), ("data.txt", "is not a Python file")],
)
def test_a_file_that_is_no_script_starts_nothing(cli: Cli, name: str, expected: str) -> None:
    Path(name).write_text("print(1)")

    code, out, errors = cli("run", name)

    assert (code, out) == (64, "")
    assert expected in errors
    assert not Path("runs").exists()
