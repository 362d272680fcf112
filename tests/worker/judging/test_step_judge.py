"""From a judged step to what is told and done."""

from __future__ import annotations

import math
from pathlib import Path

from supervisor.records import Alert, StepRecord
from tests.worker.conftest import Start


def record(step: int, loss: float) -> StepRecord:
    return StepRecord(
        step=step, loss=loss, grad_norm=1.0, loss_seen=True, grad_norm_seen=True, batch_size=8
    )


def test_calm_steps_wait_and_are_judged_before_anything_that_asks(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run")
    live.steps(200)
    step_judge = live.worker.api.step_judge

    live.steps(7)
    waiting = len(step_judge.waiting)
    step_judge.judge_waiting()

    assert waiting > 0
    assert step_judge.waiting == []


def test_only_the_step_under_way_can_be_left_out(tmp_path: Path, start: Start) -> None:
    live = start(tmp_path / "run")
    live.steps(2)
    step_judge = live.worker.api.step_judge

    assert step_judge.judge(record(2, math.nan), 0)
    assert not step_judge.judge(record(3, math.nan), 1, is_in_time=False)


def test_an_alert_handler_that_raises_is_dropped_and_the_others_are_asked(
    tmp_path: Path, start: Start
) -> None:
    live = start(tmp_path / "run")
    seen: list[Alert] = []

    def broken(alert: Alert) -> None:
        raise ValueError("no mail")

    live.worker.api.add_alert_handler(broken)
    live.worker.api.add_alert_handler(seen.append)

    live.steps(5)
    live.step(scale=math.nan)

    assert seen
    assert live.worker.api.handlers == [seen.append]
    assert "no mail" in "".join(event["message"] for event in live.events("warning"))
