"""Parameters that no optimizer has get a gradient in a fast-forward where they had one."""

from __future__ import annotations

import torch
from torch import nn

from supervisor.worker.replay.leaf_gradients import LeafGradients


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
