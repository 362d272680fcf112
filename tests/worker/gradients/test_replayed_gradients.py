"""Parameters that no optimizer has get a gradient in a fast-forward where they had one."""

from __future__ import annotations

import torch
from torch import nn

from supervisor.actions.controls import hide_gradients
from supervisor.worker.gradients.replayed_gradients import (
    GradientNotes,
    LeafGradients,
    ZeroGradients,
)


def executed(model: nn.Sequential) -> LeafGradients:
    """Behind the first step, in which the second layer had no part."""
    leaves = LeafGradients({}, lambda leaf: False)
    leaves.executed_forward(model)
    model[0](torch.ones(2, 3)).sum().backward()
    leaves.executed_backward()
    leaves.step_ended()
    for parameter in model.parameters():
        parameter.grad = None
    return leaves


def test_a_backward_that_is_left_out_gives_zeros_to_those_that_had_one() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    leaves = executed(model)
    output = torch.zeros(2, 4, requires_grad=True)

    leaves.saw(model, output)
    leaves.give(output.sum())

    assert [None if p.grad is None else p.grad.tolist() for p in model.parameters()] == [
        [[0.0] * 3] * 4,
        [0.0] * 4,
        *(None, None),
    ]


def test_a_module_without_a_forward_since_the_update_gets_none() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    leaves = executed(model)
    output = torch.zeros(2, 4, requires_grad=True)

    leaves.saw(model, output)
    leaves.step_ended()
    with torch.no_grad():
        leaves.saw(model, output)
    leaves.give(output.sum())

    assert all(p.grad is None for p in model.parameters())


def test_what_a_replay_gave_is_taken_back_unless_the_script_has_put_another_there() -> None:
    leaves = LeafGradients({}, lambda leaf: False)
    given, own = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    leaves.give(given.sum() + own.sum())
    own.grad = torch.full((2,), 3.0)

    leaves.take_back()

    assert given.grad is None
    assert own.grad.tolist() == [3.0, 3.0]


def noted() -> tuple[nn.Linear, torch.optim.Optimizer, GradientNotes]:
    model = nn.Linear(2, 1)
    model.weight.owner = "me"  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    notes = GradientNotes()
    before = notes.before([optimizer])
    model.weight.grad_sample = torch.ones(8, 1, 2)  # type: ignore[assignment]
    model.bias.grad_sample = [torch.ones(8, 1)]  # type: ignore[assignment]
    notes.executed([optimizer], before)
    return model, optimizer, notes


def test_what_an_executed_backward_wrote_is_given_again_as_zeros() -> None:
    model, optimizer, notes = noted()
    for parameter in model.parameters():
        parameter.grad_sample = None  # type: ignore[attr-defined]

    notes.give([optimizer])

    assert torch.equal(model.weight.grad_sample, torch.zeros(8, 1, 2))  # type: ignore[arg-type]
    assert [len(one) for one in model.bias.grad_sample] == [8]  # type: ignore[union-attr]
    assert model.weight.owner == "me"


def test_what_is_still_there_is_left_alone() -> None:
    model, optimizer, notes = noted()

    notes.give([optimizer])

    assert torch.equal(model.weight.grad_sample, torch.ones(8, 1, 2))  # type: ignore[arg-type]


def _given() -> tuple[ZeroGradients, torch.nn.Parameter, torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], 0.1)
    zeros = ZeroGradients()
    zeros.give([optimizer])
    return zeros, weight, optimizer


def test_zeros_that_nobody_wrote_to_are_given_back_without_being_written_again() -> None:
    zeros, weight, optimizer = _given()
    gradient = weight.grad
    assert gradient is not None
    writes = gradient._version

    hide_gradients(optimizer, zeros.are_still_zero)()

    assert weight.grad is gradient
    assert gradient._version == writes


def test_what_the_script_wrote_into_them_is_zeroed() -> None:
    zeros, weight, optimizer = _given()
    assert weight.grad is not None
    weight.grad.add_(1.0)

    hide_gradients(optimizer, zeros.are_still_zero)()

    assert weight.grad.tolist() == [0.0, 0.0, 0.0]


def test_another_gradient_is_zeroed() -> None:
    zeros, weight, optimizer = _given()
    weight.grad = torch.ones(3)

    hide_gradients(optimizer, zeros.are_still_zero)()

    assert weight.grad.tolist() == [0.0, 0.0, 0.0]
