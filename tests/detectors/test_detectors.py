"""What single detectors say about runs made for them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from supervisor.detectors.base import Detector
from supervisor.detectors.registry import build_detectors
from supervisor.records import Alert, Severity, StepRecord
from supervisor.testing import synthetic_run


def build(name: str, **values: Any) -> Detector:
    return next(d for d in build_detectors({name: values}) if d.name == name)


def play(detector: Detector, records: Iterable[StepRecord]) -> list[Alert]:
    return [alert for record in records if (alert := detector.update(record)) is not None]


def kinds(alerts: list[Alert]) -> set[str]:
    return {alert.kind for alert in alerts}


def observed(steps: int, **values: float) -> list[StepRecord]:
    return [StepRecord(step=step, observed=values) for step in range(steps)]


def test_a_nan_loss_is_critical_and_a_benign_overflow_is_nothing() -> None:
    bad = play(build("nonfinite"), synthetic_run("nan", 100))
    benign = play(build("nonfinite"), synthetic_run("fp16_overflow", 500))

    assert [(alert.kind, alert.severity) for alert in bad] == [
        ("nonfinite_loss", Severity.CRITICAL)
    ]
    assert benign == []


def test_overflows_that_repeat_under_a_scaler_are_reported() -> None:
    alerts = play(build("nonfinite"), synthetic_run("loss_scale_decay", 200))

    assert kinds(alerts) == {"repeated_overflow"}


def test_a_fixed_line_takes_precedence_over_the_dynamic_band() -> None:
    alerts = play(build("loss_anomaly", fixed=1e6), synthetic_run("spike", 200))

    assert "loss_spike" not in kinds(alerts)


def test_a_spike_is_found_at_its_step_with_figures() -> None:
    alerts = play(build("loss_anomaly"), synthetic_run("spike", 200))

    spike = next(alert for alert in alerts if alert.kind == "loss_spike")
    assert spike.step == 100
    assert spike.value > spike.threshold > spike.metadata["median"]


def test_a_constant_loss_with_a_zero_mad_alarms_for_a_real_rise_only() -> None:
    flat = [StepRecord(step=s, loss=1.0, loss_seen=True) for s in range(60)]
    small = StepRecord(step=60, loss=1.05, loss_seen=True)
    large = StepRecord(step=61, loss=1.4, loss_seen=True)

    alerts = play(build("loss_anomaly"), [*flat, small, large])

    assert [alert.step for alert in alerts] == [61]


def test_the_sensitive_preset_flags_more_than_the_default() -> None:
    run = list(synthetic_run("heavy_tailed", 600))

    calm = play(build("loss_anomaly"), run)
    sensitive = play(build("loss_anomaly", k=2.0, min_rise=0.0), run)

    assert len(sensitive) > len(calm)


def test_a_jump_that_persists_is_raised_from_low_to_medium() -> None:
    run = [StepRecord(step=s, loss=1.0 + 0.001 * (s % 5), loss_seen=True) for s in range(5)]
    run += [StepRecord(step=5 + s, loss=1.8, loss_seen=True) for s in range(4)]

    alerts = play(build("loss_anomaly"), run)

    assert [(a.kind, a.severity) for a in alerts] == [
        ("loss_jump", Severity.LOW),
        ("loss_persistent_jump", Severity.MEDIUM),
    ]


def test_the_loss_scale_is_reported_by_levels() -> None:
    alerts = play(build("loss_scale"), synthetic_run("loss_scale_decay", 300))

    assert kinds(alerts) >= {"loss_scale_unstable", "loss_scale_exhausted"}


def test_slow_divergence_is_found_but_not_a_level_that_jumped_once() -> None:
    rising = play(build("slow_divergence"), synthetic_run("slow_divergence", 800))
    shifted = play(build("slow_divergence"), synthetic_run("level_shift", 800))

    assert kinds(rising) == {"slow_divergence"}
    assert shifted == []


def test_gradient_lines_are_reported_once_a_state() -> None:
    base = StepRecord(step=0, grad_norm=1.0, grad_norm_seen=True)
    run = [replace(base, step=s, grad_norm=50.0 if 20 <= s < 30 else 1.0) for s in range(40)]
    run += [replace(base, step=s, grad_norm=1e-9) for s in range(40, 60)]

    alerts = play(build("gradient_health"), run)

    assert [alert.kind for alert in alerts] == ["grad_explosion", "grad_vanishing"]


def test_schedules_are_silent_and_a_rate_that_leaps_is_not() -> None:
    cosine = play(build("learning_rate"), synthetic_run("warm_restarts", 600))
    drop = play(build("learning_rate"), synthetic_run("learning_rate_drop", 600))
    base = StepRecord(step=0, lr=1e-3)
    leap = [replace(base, step=s, lr=1e-3 if s < 50 else 7e-3) for s in range(60)]

    assert len(play(build("learning_rate"), leap)) == 1
    assert len(cosine) <= 1  # the first restart of a cycle cannot be known
    assert drop == []


@pytest.mark.parametrize(("share", "alerts"), [(0.7, 0), (0.1, 0), (1 / 3, 0), (0.034, 1)])
def test_a_step_schedule_falls_to_round_shares(share: float, alerts: int) -> None:
    run = [StepRecord(step=s, lr=0.1 if s < 50 else 0.1 * share) for s in range(60)]

    assert len(play(build("learning_rate"), run)) == alerts


def test_a_loss_rises_if_it_does_so_beyond_its_noise() -> None:
    noise = random.Random(0)
    noisy = [
        StepRecord(step=s, loss=math.exp(noise.gauss(0.0, 0.7)), loss_seen=True)
        for s in range(2000)
    ]
    rising = [replace(record, loss=1.0 + record.step / 100) for record in noisy]

    with_noise = kinds(play(build("convergence", errors=0.0), noisy))

    assert "loss_rising" in with_noise
    assert "loss_rising" not in kinds(play(build("convergence"), noisy))
    assert "loss_rising" in kinds(play(build("convergence"), rising))


def test_a_line_down_to_nothing_is_a_schedule() -> None:
    run = [StepRecord(step=s, lr=3e-4 * (1.0 - s // 16 / 15)) for s in range(15 * 16)]

    assert play(build("learning_rate"), run) == []


def test_a_rate_out_of_range_is_reported_once() -> None:
    alerts = play(build("learning_rate"), [StepRecord(step=s, lr=3.0) for s in range(10)])

    assert [alert.kind for alert in alerts] == ["lr_out_of_range"]


def cosine(share: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * share))


@pytest.mark.parametrize("rate", [1e-1, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize(
    "schedule",
    [
        cosine,
        lambda share: 1.0 - share,
        lambda share: (1.0 - share) ** 4,
        lambda share: 0.95 ** (1000 * share),
        lambda share: cosine((share - 0.1) / 0.9) if share > 0.1 else max(1e-9, 10 * share),
        lambda share: cosine(min(1.0, share / 0.9)),  # some steps are made behind its end
    ],
)
def test_a_schedule_that_ends_at_zero_is_in_range(
    schedule: Callable[[float], float], rate: float
) -> None:
    run = [StepRecord(step=s, lr=rate * schedule(s / 999)) for s in range(1000)]

    assert play(build("learning_rate"), run) == []


def test_a_training_that_begins_far_below_any_use_is_told_so_once() -> None:
    run = [StepRecord(step=s, lr=1e-12) for s in range(300)]

    assert kinds(play(build("learning_rate"), run)) == {"lr_out_of_range"}
    assert len(play(build("learning_rate"), run)) == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["loss_anomaly", "gradient_anomaly"])
def test_the_first_steps_are_not_measured_against_one_or_two_others(name: str, seed: int) -> None:
    noise = random.Random(seed)
    noisy = [math.exp(noise.gauss(0.0, 0.6)) for _ in range(12)]
    run = [
        StepRecord(step=s, loss=v, loss_seen=True, grad_norm=v, grad_norm_seen=True)
        for s, v in enumerate([0.4, 0.9, *noisy])
    ]

    assert [alert.step for alert in play(build(name), run) if alert.step < 10] == []


def test_the_impact_of_another_batch_size_is_reported() -> None:
    run = [
        StepRecord(
            step=s,
            loss=2.0 if s < 40 else 2.5,
            loss_seen=True,
            batch_size=32 if s < 40 else 64,
            step_time_s=0.01,
        )
        for s in range(80)
    ]

    alerts = play(build("batch_impact"), run)

    assert [alert.kind for alert in alerts] == ["batch_size_impact"]
    assert math.isclose(alerts[0].metadata["throughput"], 1.0)


def test_a_plateau_is_reported_after_patience() -> None:
    flat = [StepRecord(step=s, loss=1.0, loss_seen=True) for s in range(600)]

    alerts = play(build("convergence"), flat)

    assert [alert.kind for alert in alerts] == ["plateau"]


def test_posterior_collapse_rises_from_yellow_to_red_and_suggests_a_stop() -> None:
    one = play(build("posterior_collapse", every=20), observed(300, kl=0.001, active_units=0.9))
    several = play(
        build("posterior_collapse", every=20, patience=5),
        observed(400, kl=0.001, active_units=0.02),
    )

    assert [alert.metadata["level"] for alert in one] == ["yellow"]
    assert [alert.metadata["level"] for alert in several] == ["orange", "red", "red"]
    assert several[-1].metadata["suggest_stop"]


def test_posterior_collapse_looks_more_often_in_later_stages() -> None:
    detector = build("posterior_collapse", warmup_steps=0, confirm=10**6, patience=10**6)
    scores = []
    for record in observed(6000, kl=0.001):
        detector.score = -1.0
        detector.update(record)
        scores.append(detector.score)
    looks = [index for index, score in enumerate(scores) if score >= 0]

    assert looks[2] - looks[1] == 100
    assert looks[-1] - looks[-2] == 20


def test_observed_lines_are_reported_once_an_excursion() -> None:
    dead = play(build("dead_layers"), observed(5, dead_layers_share=0.5))
    entropy = play(build("entropy_collapse"), observed(50, entropy=0.01))

    assert [len(dead), len(entropy)] == [1, 1]


def test_memory_that_grows_and_steps_that_slow_down_are_reported_once() -> None:
    leak = [StepRecord(step=s, memory_gib=1.0 + 0.001 * s) for s in range(1500)]
    slow = [StepRecord(step=s, step_time_s=0.01 if s < 400 else 0.03) for s in range(1000)]

    assert [a.kind for a in play(build("resources"), leak)] == ["memory_growth"]
    assert [a.kind for a in play(build("resources"), slow)] == ["step_time_regression"]
