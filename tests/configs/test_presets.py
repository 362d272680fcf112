"""Presets judge small real trainings of their kind, in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import pytest

from supervisor.config import load_config, load_policy
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import StepRecord
from tests.configs import small_trainings

TRAININGS: dict[str, Callable[[], Iterator[StepRecord]]] = {
    "reward model": lambda: small_trainings.reward_model(400, drifts_from=10**6),
    "reward model that drifts": lambda: small_trainings.reward_model(400, drifts_from=250),
    "policy": lambda: small_trainings.policy(350, hack_from=10**6),
    "policy that hacks": lambda: small_trainings.policy(350, hack_from=150),
    "language model": lambda: small_trainings.language_model(350),
    "language model, rate x 100": lambda: small_trainings.language_model(
        260, rate=lambda step: 1.0 if step < 200 else 100.0
    ),
    "language model, garbled text": lambda: small_trainings.language_model(330, garbled_from=150),
    "image model": lambda: small_trainings.image_model(
        450, rate=lambda step: 0.5 + 0.5 * math.cos(math.pi * (step % 150) / 150)
    ),
    "image model, raw images": lambda: small_trainings.image_model(240, raw_from=200),
}


@lru_cache(maxsize=16)
def records_of(training: str) -> tuple[StepRecord, ...]:
    return tuple(TRAININGS[training]())


@lru_cache(maxsize=32)
def judged(preset: str, training: str) -> tuple[Judgement, ...]:
    pipeline = Pipeline(load_config(preset), load_policy("observe_only"))
    return tuple(pipeline.update(record) for record in records_of(training))


def first_told(judgements: tuple[Judgement, ...], *kinds: str) -> int:
    """Step of the first alert of these kinds; -1 without one."""
    steps = (a.step for j in judgements for a in j.alerts if a.kind in kinds)
    return next(steps, -1)


def alarms(judgements: tuple[Judgement, ...]) -> list[int]:
    return [j.record.step for j in judgements if j.risk.alarm]


REWARD_KINDS = (
    "reward_accuracy_drop",
    "reward_calibration_poor",
    "reward_calibration_drift",
    "reward_drift",
    "reward_score_drift",
    "reward_hacking",
    "entropy_collapse",
    "advantage_scale",
)


def test_rlhf_catches_a_reward_model_that_drifts_and_not_a_healthy_one() -> None:
    healthy, drifting = judged("rlhf", "reward model"), judged("rlhf", "reward model that drifts")

    assert first_told(healthy, *REWARD_KINDS) == -1
    assert alarms(healthy) == []
    # Within a hundred steps half of the annotators' answers have turned round.
    assert 250 < first_told(drifting, "reward_accuracy_drop") <= 310


def test_rlhf_catches_a_policy_that_wins_reward_by_leaving_its_reference() -> None:
    healthy, hacking = judged("rlhf", "policy"), judged("rlhf", "policy that hacks")

    assert first_told(healthy, *REWARD_KINDS) == -1
    assert 150 < first_told(hacking, "reward_hacking") <= 300


@pytest.mark.parametrize("preset", ["default", "llm", "fast_detection"])
def test_a_language_model_with_a_heavy_tail_is_left_alone_and_a_broken_rate_is_not(
    preset: str,
) -> None:
    healthy = judged(preset, "language model")
    broken = judged(preset, "language model, rate x 100")

    assert alarms(healthy) == []
    assert first_told(healthy, "loss_spike", "grad_spike", "slow_divergence") == -1
    assert 200 <= alarms(broken)[0] <= 210


def test_vision_bears_mixed_images_and_warm_restarts_and_sees_raw_images() -> None:
    healthy = judged("vision", "image model")
    raw = judged("vision", "image model, raw images")

    assert alarms(healthy) == []
    jumps = ("loss_spike", "loss_jump", "loss_persistent_jump", "slow_divergence")
    assert first_told(healthy, *jumps) == -1
    assert 200 <= first_told(raw, *jumps) < 204
    assert alarms(raw)[0] in range(200, 204)


def test_sensitive_reports_more_of_a_healthy_run_and_treats_no_more() -> None:
    usual, sensitive = judged("default", "language model"), judged("sensitive", "language model")

    def spikes(judgements: tuple[Judgement, ...]) -> int:
        return sum(a.kind.endswith("_spike") for j in judgements for a in j.alerts)

    assert spikes(usual) == 0
    assert spikes(sensitive) >= 10
    assert alarms(sensitive) == []


def test_fast_detection_sees_a_slow_decline_in_a_short_run_earlier() -> None:
    training = "language model, garbled text"

    usual = first_told(judged("default", training), "slow_divergence")
    fast = first_told(judged("fast_detection", training), "slow_divergence")

    assert 150 < fast <= usual - 40
