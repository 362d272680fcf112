from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.parent.restarts.starting_point import records_until
from supervisor.parent.watching.replica import Replica
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import PolicySettings, RunSettings
from supervisor.storage.steps.flight_recorder import FlightRecorder
from tests.journals import event


def record(step: int, loss: float = 1.0) -> StepRecord:
    return StepRecord(step=step, loss=loss, loss_seen=True)


def replica(**fields: Any) -> Replica:
    return Replica(RunSettings(), PolicySettings(), **fields)


def test_the_parents_risk_is_the_pipelines() -> None:
    records = [record(step, 2.0 - step / 100) for step in range(60)] + [record(60, math.nan)]
    pipeline = Pipeline(RunSettings(), PolicySettings())
    expected = [pipeline.update(item).risk for item in records][-1]

    ours = replica()
    ours.update(records)

    assert ours.risk == expected
    assert ours.is_risky


def test_steps_judged_together_give_the_risk_of_one_by_one() -> None:
    """A rollback falls between them."""
    records = [record(step, 2.0 + 0.01 * (step % 7)) for step in range(300)]
    records[249] = replace(records[249], loss=40.0, grad_norm=90.0)
    pipeline = Pipeline(RunSettings(), PolicySettings())
    expected = []
    for item in records:
        if item.step == 200:
            pipeline.rolled_back(190)
        expected.append(pipeline.update(item).risk)

    ours, found = replica(), []
    ours.saw_events([event("rollback", before_step=200, to_step=190)])
    for start in range(0, 300, 25):
        ours.update(records[start : start + 25])
        found.append(ours.risk)

    assert found == expected[24::25]
    assert found[9] is not None
    assert found[9].probability > 0.0


def test_a_failing_pipeline_is_switched_off_and_said_once() -> None:
    said: list[str] = []

    def build(settings: RunSettings, policy: PolicySettings) -> Any:
        raise ValueError("no such detector")

    ours = replica(build=build, on_failure=said.append)
    ours.update([record(0)])
    ours.update([record(1)])

    assert said == ["risk in the parent is switched off: ValueError: no such detector"]
    assert not ours.is_risky


def test_a_new_attempt_forgets_what_came_after_its_checkpoint() -> None:
    ours = replica()
    ours.update([record(0), record(1, math.nan)])

    ours.restart([record(0)])

    assert not ours.is_risky
    assert ours.risk is not None
    assert ours.risk.step == 0


def test_history_is_the_newest_record_of_each_step_up_to_the_checkpoint(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "steps", 1)
    for step, loss in [(0, 1.0), (1, 2.0), (2, 3.0), (1, 4.0), (2, 5.0), (3, 6.0)]:
        recorder.append(record(step, loss), time=0.0)
    recorder.close()

    history = records_until(tmp_path / "steps", 2)

    assert [(item.step, item.loss) for item in history] == [(0, 1.0), (1, 4.0), (2, 5.0)]
    assert records_until(tmp_path / "steps", None) == []
    assert records_until(tmp_path / "missing", 2) == []
