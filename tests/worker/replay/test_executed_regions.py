"""Which regions of a replay really happen."""

from __future__ import annotations

import torch
from torch import nn

from supervisor.worker.replay.executed_regions import ExecutedRegions


def test_the_first_forward_of_each_mode_is_executed_and_all_of_the_first_step() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)

    found = [regions.executes_forward(model) for _ in range(3)]
    regions.step_ended()
    found += [regions.executes_forward(model) for _ in range(2)]
    model.eval()
    with torch.no_grad():
        found += [regions.executes_forward(model) for _ in range(2)]

    assert found == [True] * 3 + [False] * 2 + [True, False]


def test_a_forward_is_executed_anew_when_the_script_has_added_a_hook() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)
    model.register_full_backward_hook(lambda module, inner, outer: None)
    regions.executes_forward(model)
    regions.run(lambda: model(torch.ones(1, 2, requires_grad=True)))  # torch adds hooks of its own
    regions.step_ended()

    assert not regions.executes_forward(model)
    model.register_forward_hook(lambda module, given, output: None)
    assert regions.executes_forward(model)


def test_gradients_of_a_later_backward_are_thrown_away_and_its_hooks_called() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    regions.step_ended()
    seen: list[float] = []
    model.weight.register_hook(lambda gradient: seen.append(gradient.sum().item()))
    assert regions.executes_forward(model)
    loss = model(torch.ones(1, 2)).sum()

    for _ in range(2):  # the second one cannot be: the graph is gone
        regions.backward(loss, lambda root: root.backward(), [optimizer])

    assert seen == [2.0]
    assert model.weight.grad is None


def test_the_first_update_makes_the_optimizers_state_and_no_other_weights() -> None:
    regions, model = ExecutedRegions(), nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()

    put_back = regions.begin_update(optimizer)
    optimizer.step()
    assert put_back is not None
    put_back()

    assert model.weight in optimizer.state
    assert torch.equal(model.weight, before)
    assert regions.begin_update(optimizer) is None
