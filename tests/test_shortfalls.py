"""What of a run cannot be relied on: found in its facts, the worst first, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from supervisor.codes import Warned
from supervisor.events.event import JournalEvent
from supervisor.shortfalls import LASTING, Shortfall, find_shortfalls, is_back
from tests.journals import event

STEPS = 400


def losses(level: Callable[[int], float], noise: float = 0.05, steps: int = STEPS) -> np.ndarray:
    draw = np.random.default_rng(0)
    return np.array([level(step) for step in range(steps)]) + noise * draw.standard_normal(steps)


def found(
    series: np.ndarray, events: Sequence[JournalEvent] = (), risks: np.ndarray | None = None
) -> tuple[Shortfall, ...]:
    if risks is None:
        risks = np.zeros(len(series))
    return find_shortfalls(events, np.arange(len(series)), series, risks, alarm=0.5)


def leap(step: int, *, at: int = 160, low: float = 2.3, high: float = 4.1) -> float:
    return low + 2.0 * math.exp(-step / 40) if step < at else high


def test_a_loss_that_leaps_and_stays_is_told_with_both_levels_and_the_step() -> None:
    (one,) = found(losses(leap))

    assert one.key == "high_loss"
    assert one.is_bad
    assert one.step == 159
    assert "4.076" in one.sentence
    assert "2.339" in one.sentence


@pytest.mark.parametrize("shift", [-5.0, 0.0, 100.0])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_size_and_sign_of_a_loss_do_not_matter(shift: float, size: float) -> None:
    assert [one.key for one in found(size * (losses(leap) + shift))] == ["high_loss"]


@pytest.mark.parametrize(
    "healthy",
    [
        losses(lambda step: 0.5 + 2.0 * math.exp(-step / 40) + 0.0008 * step),  # overfits slowly
        losses(lambda step: 2.3 + 2.0 * math.exp(-step / 40), noise=0.5),
        losses(lambda step: -3.0 * (1.0 - math.exp(-step / 40))),  # a likelihood
        losses(lambda step: 1.0 + step / 100),  # a generator's, or a return's: rises throughout
        losses(lambda step: 0.1 * 3.0 ** (step // 90), noise=0.002),  # a penalty raised on purpose
        losses(lambda step: 4.1 - step / 20 if step < 30 else 4.1),  # too short to be a level
        losses(lambda step: 2.3 if step != 300 else 90.0),  # a spike that passed
        np.full(STEPS, 1.0),
        np.full(STEPS, math.nan),
        losses(leap)[:50],
        np.zeros(0),
    ],
)
def test_a_healthy_course_is_no_shortfall(healthy: np.ndarray) -> None:
    assert found(healthy) == ()


@pytest.mark.parametrize(
    "change", ["announced change", "another level", "other data", "script change"]
)
def test_losses_before_a_change_that_was_meant_or_adopted_are_no_measure(change: str) -> None:
    changed = event("state_found", step=160, found=change)

    assert found(losses(leap), [changed]) == ()


def test_no_change_explains_losses_beyond_all_that_the_untrained_weights_gave() -> None:
    adopted = event("state_found", step=180, found="script change")
    far_up = losses(lambda step: leap(step, low=2.3, high=400.0))

    (only,) = found(far_up, [adopted])

    assert (only.key, only.is_bad) == ("high_loss", True)
    assert 150 <= (only.step or 0) <= 160


def test_a_run_without_one_checkpoint_is_told_and_a_later_one_heals_it() -> None:
    failed = event("warning", step=20, found="checkpoint not saved", message="not saved: disk full")
    saved = event("checkpoint_saved", step=40, path="step_00000040", reason="interval", seconds=1.0)
    calm = losses(lambda step: 1.0)

    (never,) = found(calm, [failed])
    (since,) = found(calm, [saved, failed])

    assert never.sentence.startswith("No checkpoint could be saved")
    assert "disk full" in never.advice
    assert "go back to step 40" in since.sentence
    assert found(calm, [failed, saved]) == ()


def test_an_alarm_is_over_once_the_risk_has_fallen() -> None:
    alarm = event("risk", step=380, probability=0.9, alarm=True, reason="the loss rises")
    calm, on = losses(lambda step: 1.0), np.zeros(STEPS)
    on[380:] = 0.9
    over = on.copy()
    over[390:] = 0.1

    assert [one.key for one in found(calm, [alarm], on)] == ["open_alarm"]
    assert found(calm, [alarm], over) == ()


def test_what_is_worst_comes_first_and_each_is_told_once() -> None:
    off = event("warning", found="part switched off", message="probes is switched off")
    gone = event("warning", found="run directory gone", message="run was removed")

    told = found(losses(leap), [off, off, gone])

    assert [one.key for one in told] == ["high_loss", "directory_gone", "part_off"]


@pytest.mark.parametrize("code", [code for code in Warned if code not in LASTING])
def test_another_warning_is_no_shortfall(code: Warned) -> None:
    warned = event("warning", found=code.value, message="told")

    assert [one.key for one in found(losses(lambda _: 1.0), [warned])] in ([], ["not_saved"])


def test_overcome_means_back_at_the_level_before() -> None:
    first, before = losses(leap)[:5], losses(leap)[110:160]

    assert is_back(before[:20], before, first)
    assert is_back(before[:20] - 1.0, before, first)
    assert not is_back(before[:20] + 1.7, before, first)
