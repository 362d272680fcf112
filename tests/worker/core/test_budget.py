from __future__ import annotations

import math
from pathlib import Path

import pytest

from supervisor.worker.core import budget
from supervisor.worker.core.budget import FIRST_STEP, Pace, Share, own_time, usual_cost


def simulated(pace: Pace, *, steps: int, step_s: float, look_s: float) -> float:
    """Plays a run on a clock of its own; returns its length in seconds."""
    now = 0.0
    for step in range(steps):
        now += step_s
        if step >= pace.next_step:
            now += look_s
            pace.took(step, look_s, now)
    return now


def test_looks_take_no_more_than_their_share_of_the_time() -> None:
    for look_s in (1e-4, 1e-3, 1e-2):
        pace = Pace(0.005)

        elapsed = simulated(pace, steps=20_000, step_s=0.005, look_s=look_s)

        assert pace.looks >= 2
        # Two looks are made before it is known how long a step takes.
        assert pace.spent_s <= 0.005 * elapsed + 2 * look_s


def test_cheap_looks_at_long_steps_are_taken_at_every_step() -> None:
    pace = Pace(0.005)

    simulated(pace, steps=1000, step_s=0.5, look_s=1e-3)

    assert pace.looks > 950


def test_a_fixed_number_of_steps_beats_the_share_and_a_share_of_nothing_is_no_look() -> None:
    fixed, none = Pace(0.005, every_steps=7), Pace(0.0)

    simulated(fixed, steps=FIRST_STEP + 70, step_s=0.001, look_s=1.0)

    assert fixed.looks == 10
    assert none.next_step == math.inf


def test_work_that_keeps_its_distance_is_allowed_to_the_end() -> None:
    share, elapsed, spent = Share(0.01), 0.0, 0.0

    for cost_s in (0.2, 0.01, 3.0):
        elapsed, spent = elapsed + share.apart_s(cost_s), spent + cost_s

        assert share.allows(spent, elapsed + 1e-9)
        assert not share.allows(spent, 0.9 * elapsed)


def test_a_short_run_may_take_its_allowance_and_a_share_of_nothing_no_more() -> None:
    assert Share(0.01, allowance_s=2.0).allows(2.0, 0.0)
    assert not Share(0.0, allowance_s=2.0).allows(2.1, 1e6)
    assert Share(0.0).apart_s(1.0) > 1e8


def test_one_piece_of_work_that_was_held_up_counts_little() -> None:
    assert usual_cost(0.0, 3.0) == 3.0
    assert usual_cost(1.0, 6.0) == 2.0
    assert usual_cost(1.0, 0.1) == 0.1


def test_waiting_for_a_processor_costs_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "schedstat"
    monkeypatch.setattr(budget, "SCHEDSTAT", told)
    monkeypatch.setattr(budget.time, "perf_counter", lambda: 100.0)
    told.write_text("7000000000 2000000000 31\n")
    earlier = own_time()
    monkeypatch.setattr(budget.time, "perf_counter", lambda: 103.0)
    told.write_text("7400000000 4500000000 44\n")

    took = own_time() - earlier

    assert took == pytest.approx(0.5)
    told.unlink()
    assert own_time() == 103.0  # not told
