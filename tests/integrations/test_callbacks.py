"""The callbacks in real trainings of their frameworks, with supervision and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.errors import UsageError
from supervisor.integrations.observing import as_bad_as
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import FlightReader
from tests.integrations.frameworks import training
from tests.scenarios.runs import differences, supervised, train_plainly

EXHAUSTIVE = pytest.mark.exhaustive
ALSO = [pytest.param(name, marks=EXHAUSTIVE) for name in ("lightning", "transformers")]


@pytest.mark.parametrize("framework", ["accelerate", "ignite", *ALSO])
def test_epochs_and_validation_are_in_the_record_and_a_killed_run_ends_as_plain_python(
    tmp_path: Path, framework: str
) -> None:
    pytest.importorskip(framework)
    text = training(framework)

    ended = supervised(
        tmp_path / "run",
        text,
        settings=("checkpoint.every_steps=6", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 15}]",
    )
    alone = train_plainly(tmp_path / "alone", text)

    assert (ended.returncode, alone.returncode) == (0, 0), ended.stderr + alone.stderr
    assert differences(ended.result(), alone.result()) == []
    [resumed] = ended.events("resumed")
    assert resumed["exactness"] == "exact", resumed
    with FlightReader(RunDirectory(ended.run_dir).steps(0)) as reader:
        observed = {record.step: record.observed for record in reader.records()}
    measured = "eval_loss" if framework == "transformers" else "val_loss"
    assert len(observed) == 24
    assert 5.0 <= max(found.get("epoch", 0.0) for found in observed.values()) <= 6.0
    assert sum(measured in found for found in observed.values()) >= 5


@pytest.mark.parametrize("framework", ["ignite", *ALSO])
def test_an_alert_ends_the_training_by_the_frameworks_own_way(
    tmp_path: Path, framework: str
) -> None:
    pytest.importorskip(framework)
    text = training(framework, sick=True, stop_at="critical")

    ended = supervised(tmp_path, text, options=("--policy", "observe_only"))

    assert ended.returncode == 70, ended.stderr  # its weights are not finite
    said = [line for line in ended.stdout.splitlines() if line.startswith("ended by itself")]
    assert 0 < int(said[0].split()[-1]) < 24


@pytest.mark.parametrize("framework", ["ignite", pytest.param("lightning", marks=EXHAUSTIVE)])
def test_without_supervision_a_callback_does_nothing(tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework)

    ended = train_plainly(tmp_path, training(framework, sick=True, stop_at="critical"))

    assert ended.returncode == 0, ended.stderr
    assert "ended by itself at 24" in ended.stdout


def test_a_severity_that_does_not_exist_is_refused() -> None:
    assert as_bad_as(None) == ()
    assert as_bad_as("high") == ("critical", "high")
    with pytest.raises(UsageError, match="stop_at: 'fatal': expected one of critical, high"):
        as_bad_as("fatal")
