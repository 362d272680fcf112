from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.worker.core import budget
from supervisor.worker.core.budget import (
    ALLOWANCE_S,
    FIRST_STEP,
    BudgetMember,
    Pace,
    Share,
    SharedBudget,
    own_time,
    usual_cost,
)


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


def turns_of(
    members: dict[BudgetMember, float], *, until_s: float, from_s: float = 0.0
) -> dict[BudgetMember, list[float]]:
    """Plays a run in which each member takes every turn that it has, at the cost given; returns
    when they were."""
    turns: dict[BudgetMember, list[float]] = {member: [] for member in members}
    now = from_s
    while now < until_s:
        for member, cost_s in members.items():
            if now >= member.next_at():
                member.took(cost_s, now)
                turns[member].append(now)
        now += 0.01
    return turns


def apart_s(turns: list[float]) -> float:
    """Between the last ones, on average."""
    apart = [later - earlier for earlier, later in itertools.pairwise(turns)][-4:]
    return sum(apart) / len(apart)


def test_equal_turns_come_round_in_what_all_together_may_take() -> None:
    shared = SharedBudget(0.0)
    first, second = shared.join(0.0025), shared.join(0.0025)

    turns = turns_of({first: 0.01, second: 0.01}, until_s=100.0)

    for times in turns.values():
        assert apart_s(times) == pytest.approx(0.02 / 0.005, rel=0.02)


def test_a_dearer_turn_comes_less_often_by_the_root_of_its_cost() -> None:
    shared = SharedBudget(0.0)
    cheap, dear = shared.join(0.0025), shared.join(0.0025)

    turns = turns_of({cheap: 0.005, dear: 0.08}, until_s=400.0)

    assert apart_s(turns[dear]) == pytest.approx(4.0 * apart_s(turns[cheap]), rel=0.03)
    rate = 0.005 / apart_s(turns[cheap]) + 0.08 / apart_s(turns[dear])
    assert rate == pytest.approx(0.005, rel=0.03)


def test_a_tenth_of_the_share_is_a_tenth_of_the_turns_and_the_others_keep_theirs() -> None:
    shared = SharedBudget(0.0)
    usual, seldom = shared.join(0.0025), shared.join(0.00025)

    turns = turns_of({usual: 0.01, seldom: 0.01}, until_s=400.0)

    assert apart_s(turns[usual]) == pytest.approx(0.01 / 0.0025, rel=0.03)
    assert apart_s(turns[seldom]) == pytest.approx(0.01 / 0.00025, rel=0.03)


def test_who_is_alone_has_its_own_share_and_no_more() -> None:
    shared = SharedBudget(0.0)
    alone, off = shared.join(0.0025), shared.join(0.0)

    turns = turns_of({alone: 0.01, off: 0.01}, until_s=400.0)

    assert apart_s(turns[alone]) == pytest.approx(0.01 / 0.0025, rel=0.02)
    assert len(turns[off]) == 1


def test_the_first_copy_of_a_large_state_waits_for_credit() -> None:
    shared = SharedBudget(0.0)
    snapshots, copies = shared.join(0.0025), shared.join(0.0025)
    snapshots.took(0.3, 0.0)

    assert copies.next_at(0.02) == pytest.approx((0.32 + 0.3 - ALLOWANCE_S) / 0.005)
    copies.took(0.1, 200.0)
    assert copies.next_at(9.0) == copies.next_at()


def test_a_pause_of_the_script_is_no_credit_for_a_row_of_turns() -> None:
    shared = SharedBudget(0.0)
    member = shared.join(0.005)
    member.took(ALLOWANCE_S, 0.0)

    member.took(0.01, 36_000.0)

    assert member.early_at == pytest.approx(36_000.0 - (ALLOWANCE_S - 0.02) / 0.005)


@given(
    shares=st.lists(st.floats(1e-4, 0.02), min_size=1, max_size=3),
    costs=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=12),
    waits=st.lists(st.floats(0.001, 2000.0), min_size=1, max_size=60),
    are_early=st.booleans(),
)
def test_whatever_turns_cost_all_together_keep_the_share_but_for_one_turn_of_each(
    shares: list[float], costs: list[float], waits: list[float], *, are_early: bool
) -> None:
    shared = SharedBudget(0.0)
    members = [shared.join(share) for share in shares]
    prices = itertools.cycle(costs)
    now, spent, dearest = 0.0, 0.0, dict.fromkeys(members, 0.0)
    for wait in waits:
        now += wait
        due = [one for one in members if now >= (one.early_at if are_early else one.next_at())]

        for member in due:  # all are asked before the first one acts, as with several ranks
            cost_s = next(prices)
            member.took(cost_s, now)
            spent += cost_s
            dearest[member] = max(dearest[member], cost_s)

        most = ALLOWANCE_S + sum(shares) * now + sum(dearest.values())
        assert spent <= most * (1 + 1e-9)


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
