from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.records import StepRecord
from supervisor.storage.run.run_state import RunState, save_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands look into the current folder and the user's case library: not into the real ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPERVISOR_CASES", str(tmp_path / "cases.sqlite"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command line in this process; returns exit code, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    text = "def train(run):\n    pass\n\ndef later(run, **more):\n    pass\n\nprint('trained')\n"
    path.write_text(text)
    return path


def make_run(path: Path, state: RunState, records: tuple[StepRecord, ...] = ()) -> RunDirectory:
    """A run directory as a run leaves it behind, without its report."""
    rundir = RunDirectory(path)
    rundir.make(rundir.root)
    save_run_state(rundir, state)
    if records:
        rundir.make(rundir.steps(0).parent)
        recorder = FlightRecorder(rundir.steps(0), attempt=1)
        for record in records:
            recorder.append(record, time=1000.0 + record.step, risk=0.1)
        recorder.close()
    return rundir


def seen(step: int, loss: float, **fields: float) -> StepRecord:
    return StepRecord(step=step, loss=loss, loss_seen=True, **fields)
