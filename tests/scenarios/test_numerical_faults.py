"""Numerical faults in a real run: after treatment it ends where the undisturbed run does."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest

from supervisor.config import load_resolved_config, load_resolved_policy
from supervisor.events.parsing import parse_event
from supervisor.parent.watching.replica import Replica
from supervisor.storage.steps.flight_recorder import FlightReader
from tests.scenarios.runs import Ended, again, supervised, train_plainly

CHAR_LM = Path(__file__).parents[2] / "examples" / "char_lm.py"
STEPS = ("--steps", "300", "--seed", "0")
FAULTS = {
    "nan_gradient": "{kind: nan_gradient, step: 150}",
    "nan_loss": "{kind: nan_loss, step: 150}",
    "nan_data": "{kind: nan_data, step: 150}",
    "loss_spike": "{kind: loss_spike, step: 150, factor: 1.0e+4}",
    "weight": "{kind: weight, step: 150}",
    "second_moment": "{kind: second_moment, step: 150, factor: 1.0e-9}",
    "lr_spike": "{kind: lr_spike, step: 150, factor: 300}",
}


def _final_loss(ended: Ended) -> float:
    found = re.search(r"final validation loss ([\d.naif]+)", ended.stdout)
    assert found, ended.stdout + ended.stderr
    return float(found.group(1))


def _steps(ended: Ended) -> Path:
    return ended.run_dir / "steps" / "rank_0.steps"


def _risks_of_the_parent(ended: Ended) -> list[float]:
    """What the parent's copy of the pipeline thinks of every step that the worker recorded."""
    replica = Replica(
        load_resolved_config(ended.run_dir / "config.yaml"),
        load_resolved_policy(ended.run_dir / "policy.yaml"),
    )
    replica.saw_events([parse_event(line) for line in ended.events("rollback")])
    risks = []
    for record in FlightReader(_steps(ended)).records(0):
        replica.update([record])
        assert replica.risk is not None
        risks.append(replica.risk.probability)
    return risks


@lru_cache(maxsize=1)
def _undisturbed(folder: str) -> float:
    return _final_loss(train_plainly(Path(folder), CHAR_LM.read_text(), STEPS))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> float:
    return _undisturbed(str(tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize(
    "fault",
    [
        *("nan_gradient", "loss_spike", "second_moment"),
        *(
            pytest.param(f, marks=pytest.mark.exhaustive)
            for f in ("nan_loss", "nan_data", "weight", "lr_spike")
        ),
    ],
)
def test_a_run_with_a_fault_ends_within_two_percent(
    fault: str, undisturbed: float, tmp_path: Path
) -> None:
    ended = supervised(
        tmp_path,
        CHAR_LM.read_text(),
        STEPS,
        settings=("checkpoint.every_steps=50", "snapshot.every_steps=10"),
        faults=f"[{FAULTS[fault]}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert _final_loss(ended) <= 1.02 * undisturbed
    assert [e["cause"] for e in ended.events("worker_exited")] == ["completed"]
    assert {"skip_update", "rollback"} & set(ended.actions())
    assert _risks_of_the_parent(ended) == list(FlightReader(_steps(ended)).read()["risk"])


def test_a_policy_that_only_observes_changes_nothing(undisturbed: float, tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        CHAR_LM.read_text(),
        STEPS,
        options=("--policy", "observe_only"),
        faults=f"[{FAULTS['nan_gradient']}]",
    )

    assert ended.returncode == 70  # nothing kept the NaN out of the weights
    assert "not finite" in ended.stderr
    assert ended.actions() == []
    assert any(e["outcome"] == "would_have" for e in ended.events("action"))
    assert {e["outcome"] for e in ended.events("action")} == {"would_have"}
    assert ended.stderr.count("supervisor: would have done skip_update at step") == 1


def test_a_run_that_stays_sick_is_stopped_with_its_reasons(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        CHAR_LM.read_text(),
        STEPS,
        settings=("checkpoint.every_steps=20",),
        faults="[{kind: nan_gradient, step: 150, every: true, count: 100000}]",
    )
    report = again(ended, "report", "run", "--format", "json")

    assert ended.returncode == 70, ended.stderr
    assert ended.events("gave_up")
    assert report.returncode == 0, report.stderr
