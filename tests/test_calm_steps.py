"""Many steps at once are judged as they are one by one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.calm_steps import CalmSteps, OrdinaryStep, as_ordinary, as_record
from supervisor.ladder.default_policy import default_policy
from supervisor.pipeline import Judgement, Pipeline
from supervisor.prediction.trajectory import Trajectory
from supervisor.records import StepRecord
from supervisor.settings import RunSettings
from supervisor.storage.cases.case_advisor import CaseAdvisor
from supervisor.storage.cases.case_memory import CaseMemory
from supervisor.testing import HEALTHY_KINDS, TROUBLED_KINDS, synthetic_run

SIZES = (31, 31, 5, 1, 17)


def pipeline() -> Pipeline:
    return Pipeline(RunSettings(), default_policy(), advisor=CaseAdvisor(CaseMemory()))


def like_a_live_run(records: Sequence[StepRecord]) -> list[StepRecord]:
    """With what every live run has: seconds, a batch size and memory."""
    return [
        replace(
            record,
            step_time_s=0.1 + 0.01 * (record.step % 7),
            batch_size=record.batch_size or 8,
            memory_gib=1.0 + 1e-5 * record.step,
        )
        for record in records
    ]


def noisy_run(
    seed: int,
    *,
    noise: float,
    count: int = 900,
    blips: int = 4,
    rise: float = 0.0,
    leap: float = 1.0,
) -> Iterator[StepRecord]:
    """A falling loss with noise, some values far off, and a rate that follows a cosine.

    From step 500 on the loss rises by `rise` a step, and the rate of step 600 is `leap` times
    what it should be.
    """
    rng = random.Random(seed)
    far_off = {rng.randrange(count): rng.choice((1.3, 2.0, 8.0, 300.0)) for _ in range(blips)}
    for step in range(count):
        level = 3.0 * math.exp(-step / 300.0) + 1.0 + rise * max(0, step - 500)
        loss = level * math.exp(rng.gauss(0.0, noise)) * far_off.get(step, 1.0)
        norm = math.exp(rng.gauss(0.0, 3.0 * noise)) * far_off.get(step - 1, 1.0)
        lr = 1e-3 * (1.0 + math.cos(math.pi * step / count))
        lr *= leap if step == 600 else 1.0
        yield as_record((step, loss, norm, lr, 0.1, 8, 1.0))


def told(judgement: Judgement) -> str:
    return repr(judgement)


def in_many(judge: Pipeline, records: Sequence[StepRecord]) -> list[str]:
    """What is told of each step; the empty text for quiet ones."""
    found: list[str] = []
    for is_ordinary, group in groupby(records, key=lambda record: as_ordinary(record) is not None):
        some = list(group)
        if not is_ordinary:
            found += map(told, judge.update_all(some))
            continue
        steps = [step for step in map(as_ordinary, some) if step is not None]
        for count, judgement in judge.update_ordinary(steps):
            found += [""] * count if judgement is None else [told(judgement)]
    return found


def assert_same(
    records: Sequence[StepRecord], *, rolled_back_at: int = -1, sizes: Sequence[int] = SIZES
) -> int:
    """Judges the run in both ways; returns how many steps were passed over in silence."""
    alone, together = pipeline(), pipeline()
    done = quiet = 0
    for index in range(len(records)):
        block = records[done : done + sizes[index % len(sizes)]]
        if not block:
            break
        done += len(block)
        expected = list(alone.update_all(block))
        found = in_many(together, block)
        assert len(found) == len(expected)
        for judgement, text in zip(expected, found, strict=True):
            if text:
                assert text == told(judgement)
            else:
                assert judgement.is_quiet
                assert judgement.decision is None
                assert not judgement.outcomes
        quiet += found.count("")
        if rolled_back_at >= 0 and block[0].step <= rolled_back_at <= block[-1].step:
            for judge in (alone, together):
                judge.rolled_back(block[0].step - 40)
        states = (json.dumps(judge.state_dict(), default=str) for judge in (alone, together))
        assert next(states) == next(states), f"behind step {block[-1].step}"
    return quiet


@pytest.mark.parametrize("kind", sorted({*HEALTHY_KINDS, *TROUBLED_KINDS}))
def test_any_course_is_judged_as_one_by_one(kind: str) -> None:
    assert_same(like_a_live_run(list(synthetic_run(kind, 700, seed=1))))


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    noise=st.sampled_from((0.0, 0.01, 0.05, 0.3, 1.0)),
    blips=st.integers(0, 12),
    rise=st.sampled_from((0.0, 0.0, 0.002, 0.006)),
    leap=st.sampled_from((1.0, 20.0)),
)
def test_noise_and_far_off_values_are_judged_as_one_by_one(
    seed: int, noise: float, blips: int, rise: float, leap: float
) -> None:
    assert_same(list(noisy_run(seed, noise=noise, blips=blips, rise=rise, leap=leap)))


def test_a_leap_of_the_rate_is_followed() -> None:
    assert_same(list(noisy_run(1, noise=0.02, blips=0, leap=20.0)))


@pytest.mark.parametrize("known", [400, 1480, 1499, 1500])
def test_windows_that_stop_growing_end_alike(known: int) -> None:
    """A trajectory's long window grows with the run until its 1,500th step."""
    values = [step[1] for step in map(as_ordinary, noisy_run(5, noise=0.02, count=1600)) if step]
    one_by_one, together = Trajectory(), Trajectory()
    for value in values[:known]:
        one_by_one.update(value)
        together.update(value)
    block = values[known : known + 31]

    inner = list(map(math.log, block))
    count, ordered = together.count_usual(inner)
    together.take_usual(inner[:count], ordered)
    for value in block[count:]:
        together.update(value)
    for value in block:
        one_by_one.update(value)

    assert together.state_dict() == one_by_one.state_dict()
    assert count > 0 or known < 1500 <= known + 31


@pytest.mark.parametrize("rise", [0.006, 0.008])
def test_a_slow_climb_is_seen_among_steps_taken_together(rise: float) -> None:
    records = list(noisy_run(1, noise=0.07, blips=0, rise=rise))
    judge = pipeline()
    seen = {name for record in records for name in judge.update(record).risk.contributions}

    assert "steady_climb" in seen
    assert assert_same(records) > 200


def test_a_rollback_between_finds_the_same_windows() -> None:
    quiet = assert_same(list(noisy_run(3, noise=0.05, blips=0)), rolled_back_at=700)

    assert quiet > 400


def test_most_steps_of_a_healthy_run_are_passed_over_together() -> None:
    """Else all of this would be for nothing; the first 150 steps of a run are judged one by one."""
    records = like_a_live_run(list(synthetic_run("healthy", 2000, seed=2)))

    assert assert_same(records) > 1600


def test_a_record_that_says_more_is_no_ordinary_step() -> None:
    plain = as_record((7, 1.5, 0.5, 1e-3, 0.1, 8, 2.0))

    assert as_ordinary(plain) == (7, 1.5, 0.5, 1e-3, 0.1, 8, 2.0)
    for change in (
        {"observed": {"kl": 1.0}},
        {"loss_scale": 1024.0},
        {"scaler_skipped": True},
        {"others_trained": True},
        {"begins_training": True},
        {"announced": True},
        {"in_environment": True},
        {"loss_seen": False},
        {"grad_norm_seen": False},
    ):
        assert as_ordinary(replace(plain, **change)) is None, change  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {1: math.nan},
        {1: math.inf},
        {1: 0.0},
        {1: -1.0},
        {2: math.nan},
        {2: 0.0},
        {4: math.nan},
        {4: 0.0},
        {5: 4},
        {6: math.nan},
    ],
)
def test_what_has_no_logarithm_or_no_size_is_looked_at_one_by_one(change: dict[int, float]) -> None:
    usual: OrdinaryStep = (7, 1.5, 0.5, 1e-3, 0.1, 8, 2.0)
    other = list(usual)
    for place, value in change.items():
        other[place] = value

    assert CalmSteps.are_plain([usual, usual])
    assert not CalmSteps.are_plain([usual, tuple(other), usual])  # type: ignore[list-item]
