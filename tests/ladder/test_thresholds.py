"""The thresholds of a policy are those at which a run warns, alarms, saves and treats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.analysis.backtest.backtest import backtest_records
from supervisor.config import load_policy
from supervisor.parent.watching.replica import Replica
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings, RunSettings
from tests.ladder.test_escalation import Course, actions


def policy(alarm: float) -> PolicySettings:
    return load_policy(overrides=[f"alarm_threshold={alarm}"])


def leap_of_risk_06() -> list[StepRecord]:
    """One step far above the recent ones; nothing comes of it."""
    steps = [
        StepRecord(
            step=step, loss=1.0 + 0.01 * (step % 7), grad_norm=1.0, lr=1e-3, step_time_s=0.1,
            loss_seen=True, grad_norm_seen=True,
        )
        for step in range(120)
    ]  # fmt: skip
    steps[100] = replace(steps[100], loss=9.0)
    return steps


@pytest.mark.parametrize(
    ("alarm", "warned", "alarmed"), [(0.2, True, True), (0.5, True, True), (0.8, True, False)]
)
def test_predictor_parent_and_backtest_alarm_at_the_policys_line(
    alarm: float, warned: bool, alarmed: bool
) -> None:
    steps = leap_of_risk_06()
    pipeline = Pipeline(RunSettings(), policy(alarm))
    replica = Replica(RunSettings(), policy(alarm))
    result = backtest_records(steps, RunSettings(), policy(alarm))

    risk = [judgement.risk for judgement in pipeline.update_all(steps[:101])][-1]
    replica.update(steps[:101])

    assert risk.probability == 0.6
    assert (risk.warning, risk.alarm) == (warned, alarmed)
    assert replica.is_risky is alarmed
    assert result.first_alarm == (100 if alarmed else None)


def test_a_lower_alarm_line_treats_earlier_and_a_higher_one_later() -> None:
    early, usual, late = Course(policy(0.25)), Course(policy(0.5)), Course(policy(0.85))

    assert ("cut_lr", "tighten_clip") in actions(early.go(0.3, 3))
    assert actions(usual.go(0.3, 3)) == [("checkpoint",)]
    assert actions(late.go(0.8, 100)) == [("checkpoint",)] * 5
    assert ("cut_lr", "tighten_clip") in actions(late.go(0.86, 3))


def test_a_lower_warning_line_saves_earlier() -> None:
    course = Course(load_policy(overrides=["warn_threshold=0.1"]))

    assert actions(course.go(0.15)) == [("checkpoint",)]


def test_no_evidence_is_no_trouble_wherever_the_lines_are() -> None:
    lines = RiskLines(warn=0.0, alarm=0.0)

    assert not lines.is_warning(0.0)
    assert not lines.is_alarm(0.0)
    assert Course(policy(0.0)).go(0.0, 200) == []
