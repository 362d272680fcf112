from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.analysis.backtest.backtest import backtest_records
from supervisor.analysis.backtest.trace import read_trace
from supervisor.config import load_policy
from supervisor.prediction.predictor import CrashPredictor
from supervisor.records import Cause, CrashRisk, StepRecord
from supervisor.risk_lines import RiskLines
from supervisor.settings import RunSettings
from supervisor.testing import HEALTHY_KINDS, TROUBLED_KINDS, synthetic_run

LINES = RiskLines(warn=0.3, alarm=0.5)
TRACES = Path(__file__).parents[2].parent / "shared" / "traces"


def risks(kind: str, steps: int = 600, seed: int = 0) -> list[CrashRisk]:
    result = []
    predictor = CrashPredictor(LINES)
    for record in synthetic_run(kind, steps, seed):
        nonfinite = 2.0 if record.has_nonfinite_loss else 0.0
        result.append(predictor.update(record, {"nonfinite": nonfinite}))
    return result


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", HEALTHY_KINDS)
def test_a_healthy_run_raises_no_alarm(kind: str, seed: int) -> None:
    result = backtest_records(synthetic_run(kind, 600, seed), RunSettings(), load_policy())

    assert result.alarms == []


@pytest.mark.parametrize("kind", [k for k in TROUBLED_KINDS if k != "gradient_spike"])
def test_trouble_raises_an_alarm_after_it_began_and_not_before(kind: str) -> None:
    result = backtest_records(synthetic_run(kind, 800), RunSettings(), load_policy())

    assert result.first_alarm is not None
    assert result.first_alarm >= 400


def test_a_young_run_is_watched_while_its_loss_still_falls() -> None:
    result = backtest_records(synthetic_run("leap", 140), RunSettings(), load_policy())

    assert result.first_alarm in (70, 71, 72)


def test_a_leap_that_persists_is_nearly_certain_and_knows_its_onset() -> None:
    result = risks("leap")

    assert result[299].probability == 0.0
    assert 0.3 <= result[300].probability < 0.5
    assert result[301].probability >= 0.9
    assert result[301].onset_step == 300
    assert result[301].cause is Cause.DIVERGENCE


def test_a_value_that_is_not_finite_comes_first_and_repeated_is_worse() -> None:
    once, again = risks("nan_forever")[300:302]

    assert 0.5 <= once.probability < 0.9 <= again.probability
    assert once.cause is Cause.NONFINITE


def test_risk_is_explained_by_its_largest_contribution() -> None:
    risk = risks("divergence")[330]

    assert risk.probability == max(risk.contributions.values())
    assert "recent median" in risk.reason


def test_a_norm_far_up_is_a_warning_only() -> None:
    found = [risk.contributions for risk in risks("spike") if risk.contributions]

    assert any("gradient_warning" in contributions for contributions in found)
    assert all(contributions.get("gradient_warning", 0.0) < 0.5 for contributions in found)


def game(kind: str) -> list[CrashRisk]:
    predictor = CrashPredictor(LINES)
    result = []
    for record in synthetic_run(kind, 600):
        nonfinite = 2.0 if record.has_nonfinite_loss else 0.0
        record = replace(record, others_trained=record.step > 0)
        result.append(predictor.update(record, {"nonfinite": nonfinite}))
    return result


def test_the_loss_of_a_game_has_no_trajectory_but_it_must_be_finite() -> None:
    signals = {name for risk in game("divergence")[:340] for name in risk.contributions}

    assert not signals & {"departure", "steady_climb", "slow_divergence"}
    assert any(risk.probability >= 0.9 for risk in game("nan_forever"))


@pytest.mark.parametrize(("in_game", "expected"), [(False, [100, 101]), (True, [101])])
def test_in_a_game_a_single_leap_is_a_warning(in_game: bool, expected: list[int]) -> None:
    noise = random.Random(0)
    predictor = CrashPredictor(LINES)
    alarms = []
    for step in range(102):
        loss = (4.0 if step >= 100 else 1.0) * noise.lognormvariate(0, 0.05)
        record = StepRecord(step=step, loss=loss, loss_seen=True, others_trained=in_game)
        risk = predictor.update(record, {})
        alarms += [step] * risk.alarm

    assert risk.warning
    assert alarms == expected


def test_a_reward_that_falls_is_an_alarm() -> None:
    noise = random.Random(0)
    predictor = CrashPredictor(LINES)
    alarms = []
    for step in range(400):
        level = min(step, 200) / 250 - max(0, step - 300) / 100
        reward = {"reward": level + noise.gauss(0.0, 0.05)}
        loss = noise.gauss(0.0, 0.1)
        record = StepRecord(
            step=step, loss=loss, loss_seen=True, in_environment=True, observed=reward
        )
        if predictor.update(record, {}).alarm:
            alarms.append(step)

    assert alarms
    assert 300 <= alarms[0] <= 340


def test_a_copy_of_the_state_goes_on_bit_for_bit() -> None:
    records = list(synthetic_run("divergence", 400))
    first, copy = CrashPredictor(LINES), CrashPredictor(LINES)
    for record in records[:150]:
        first.update(record, {})

    copy.load_state_dict(json.loads(json.dumps(first.state_dict())))

    for record in records[150:]:
        assert first.update(record, {}) == copy.update(record, {})


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not at hand")
@pytest.mark.parametrize(
    ("name", "start", "stop", "alarm_before"),
    [
        ("h02_gpt2_adamw", 0, 2000, None),
        ("h20_swin_cifar10_amp", 0, 2272, None),
        ("h31_dobs_tolstoi", 0, 2000, None),
        ("t02_cifar10_gd_nan", 5600, 6060, 6000),
        ("t10_fvae_adam_nan", 5000, 6060, 6000),
        ("t15_fvae_mom_nan", 2000, 2933, 2873),
        ("t18_tolstoi_collapse", 7000, 9900, 9900),
    ],
)
def test_public_runs_get_the_verdict_that_history_gave(
    name: str, start: int, stop: int, alarm_before: int | None
) -> None:
    records = list(read_trace(TRACES / f"{name}.csv"))
    result = backtest_records(records[start:stop], RunSettings(), load_policy())

    if alarm_before is None:
        assert result.alarms == []
    else:
        rows = {record.step: index for index, record in enumerate(records)}
        assert result.alarms
        assert rows[result.alarms[0].step] < alarm_before
