"""From which norm on an update is left out, as is known before the step."""

from __future__ import annotations

import math
import random

import pytest

from supervisor.ladder.guard import NO_LIMIT, Guard, GuardVerdict
from supervisor.records import CrashRisk, StepRecord
from supervisor.settings import GuardSettings


def record(step: int, loss: float, norm: float, clips_at: float = math.inf) -> StepRecord:
    return StepRecord(
        step=step, loss=loss, grad_norm=norm, clips_at=clips_at, loss_seen=True, grad_norm_seen=True
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("clips_at", [math.inf, 1.0, 1e4])
@pytest.mark.parametrize("are_foreseen", [False, True])
def test_it_says_before_a_step_what_the_guard_does_about_it(
    seed: int, clips_at: float, are_foreseen: bool
) -> None:
    numbers = random.Random(seed)
    guard, skipped = Guard(GuardSettings(rollback_after_skips=10**6)), 0
    waiting: list[StepRecord] = []
    for step in range(600):
        rare = 0.03 if step > 40 else 0.0
        norm = numbers.lognormvariate(0.0, 0.5) * (1e5 if numbers.random() < rare else 1.0)
        loss = numbers.lognormvariate(0.0, 0.3) * (1e4 if numbers.random() < rare else 1.0)
        now = record(step, loss, norm, clips_at)
        limit = guard.norm_limit(clips_at=clips_at, has_moving_objective=False)
        is_left_out = norm > limit.norm and (limit.loss == -math.inf or loss > limit.loss)

        waiting.append(now)
        if are_foreseen and norm < 50.0 and loss < 50.0 and len(waiting) < 32:
            guard.foresee(now)  # calm: judged later, with others
            continue
        verdicts = [
            guard.update(one, CrashRisk(step=one.step, probability=0.0))[0] for one in waiting
        ]

        assert (verdicts[-1] is GuardVerdict.SKIP) is is_left_out
        assert set(verdicts[:-1]) <= {None}
        waiting, skipped = [], skipped + is_left_out
    assert skipped or clips_at == 1.0


def test_nothing_finite_is_absurd_at_first_or_where_the_objective_moves() -> None:
    guard = Guard(GuardSettings())
    for step in range(40):
        assert step > 9 or guard.norm_limit(clips_at=1.0, has_moving_objective=False) is NO_LIMIT
        guard.update(record(step, 1.0, 1.0), CrashRisk(step=step, probability=0.0))

    assert guard.norm_limit(clips_at=math.inf, has_moving_objective=False).norm == 25.0
    assert guard.norm_limit(clips_at=math.inf, has_moving_objective=True) is NO_LIMIT
    guard.forget_levels()
    assert guard.norm_limit(clips_at=math.inf, has_moving_objective=False) is NO_LIMIT
