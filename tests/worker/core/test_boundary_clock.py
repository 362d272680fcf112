"""When a step is over, for one optimizer and for two that take turns."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.optim import SGD

from supervisor.worker.core.boundary_clock import TAKES_OVER_AFTER, BoundaryClock, graph_nodes


def _optimizer() -> SGD:
    return SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def _update(clock: BoundaryClock, optimizer: SGD) -> bool:
    clock.is_main(optimizer)
    clock.updated(optimizer)
    return clock.is_due


def test_the_first_to_step_leads_and_a_step_is_over_behind_its_second_update() -> None:
    clock, optimizer = BoundaryClock(), _optimizer()
    clock.passed()

    assert [_update(clock, optimizer) for _ in range(3)] == [False, True, True]


def test_without_any_forward_a_step_is_over_behind_its_update_until_the_first_forward() -> None:
    clock, optimizer = BoundaryClock(), _optimizer()

    due = [_update(clock, optimizer) for _ in range(3)]
    before = clock.has_forwards
    clock.passed()

    assert due == [False, True, True]
    assert (before, clock.has_forwards) == (False, True)


def test_a_step_of_two_optimizers_is_over_when_both_have_stepped() -> None:
    clock, first, second = BoundaryClock(), _optimizer(), _optimizer()
    turns = [first, second, first, second, first, second]

    due = [_update(clock, optimizer) for optimizer in turns]

    assert due[2:] == [False, True, False, True]


def test_a_lead_that_the_script_drops_is_freed_and_the_next_to_step_leads() -> None:
    clock, first, second = BoundaryClock(), _optimizer(), _optimizer()
    for _ in range(3):
        _update(clock, first)
    gone = weakref.ref(first)

    del first
    for _ in range(30):
        _update(clock, second)

    assert gone() is None
    assert clock.main() is second
    assert clock.is_main(second)
    assert clock.by_others == 0


def test_who_steps_alone_for_long_leads_another_training() -> None:
    clock, first, second, third = BoundaryClock(), _optimizer(), _optimizer(), _optimizer()
    for _ in range(3):
        _update(clock, first)

    took_over = [clock.updated(second) for _ in range(TAKES_OVER_AFTER - 1)]
    took_over += [clock.updated(third)]  # the row is broken
    took_over += [clock.updated(second) for _ in range(TAKES_OVER_AFTER - 1)]

    assert not any(took_over)
    assert clock.updated(second)
    assert clock.is_main(second)
    assert not clock.is_main(first)
    assert clock.by_others == 0
    assert _update(clock, second)


def test_a_new_optimizer_of_the_same_weights_leads_at_once_and_goes_on_with_the_training() -> None:
    clock, weight = BoundaryClock(), torch.nn.Parameter(torch.ones(1))
    first, second = SGD([weight], lr=0.1), SGD([weight], lr=0.1)
    for _ in range(3):
        _update(clock, first)

    is_first_rank = clock.is_main(second)

    assert is_first_rank
    assert (clock.is_new_main, clock.is_new_training) == (True, False)
    assert not clock.is_main(first)  # it was known; it follows from here on


def test_two_that_take_turns_on_the_same_weights_stay_one_step() -> None:
    clock, weight = BoundaryClock(), torch.nn.Parameter(torch.ones(1))
    first, second = SGD([weight], lr=0.1), SGD([weight], lr=0.1)

    due = [_update(clock, optimizer) for optimizer in 4 * [first, second]]

    assert clock.main() is first
    assert due[2:] == [False, True, False, True, False, True]


def test_a_new_optimizer_of_other_weights_waits_while_the_lead_is_there() -> None:
    clock, first, second = BoundaryClock(), _optimizer(), _optimizer()
    for _ in range(3):
        _update(clock, first)

    assert not clock.is_main(second)


def test_an_evaluation_of_one_rank_alone_is_no_boundary_of_several() -> None:
    clock, optimizer = BoundaryClock(of_ranks=True), _optimizer()
    clock.passed()
    _update(clock, optimizer)
    _update(clock, optimizer)

    with torch.no_grad():
        evaluating = clock.is_due_here()
        clock.passed()

    assert (evaluating, clock.is_due_here()) == (False, True)


def test_a_graph_that_is_begun_behind_an_update_is_noticed() -> None:
    clock, optimizer = BoundaryClock(), _optimizer()
    weight = optimizer.param_groups[0]["params"][0]
    begun_before_training = clock.has_begun_graph()
    _update(clock, optimizer)

    found = [begun_before_training, clock.has_begun_graph()]
    with torch.no_grad():
        weight.norm()
    weight.detach().norm()
    found.append(clock.has_begun_graph())
    weight.norm()
    found.append(clock.has_begun_graph())
    _update(clock, optimizer)

    assert [*found, clock.has_begun_graph()] == [False, False, False, True, False]


def test_what_an_evaluation_casts_with_a_graph_of_its_own_begins_no_step() -> None:
    clock, optimizer, model = BoundaryClock(), _optimizer(), torch.nn.Linear(2, 1)
    _update(clock, optimizer)
    before = graph_nodes()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(1, 2))
    made = graph_nodes() - before
    begun = clock.has_begun_graph()

    clock.made_without_graph(made)

    if not made:
        pytest.skip("this torch makes no such graph")
    assert (begun, clock.has_begun_graph()) == (True, False)


def test_boundaries_at_updates_are_at_no_forward() -> None:
    clock, optimizer = BoundaryClock(), _optimizer()
    clock.passed()
    for _ in range(2):
        _update(clock, optimizer)
    before = (clock.is_due_here(), clock.is_due_at_update())
    clock.at_update = True

    assert before == (True, False)
    assert (clock.is_due_here(), clock.is_due_at_update()) == (False, True)
