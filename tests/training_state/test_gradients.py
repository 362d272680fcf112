"""Which parameters have a gradient between two steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from supervisor.training_state.gradients import (
    earlier_gradients,
    gradient_places,
    put_in_places,
)
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import copy_state
from supervisor.training_state.state import TrainingState

Pair = tuple[Registry, torch.nn.Linear, torch.nn.Linear]


@pytest.fixture
def pair() -> Iterator[Pair]:
    registry, models = Registry(), (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    for optimizer in optimizers:  # alive as long as the test: the registry holds weak references
        registry.add_optimizer(optimizer)
    yield registry, *models
    del optimizers


def test_a_parameter_has_a_gradient_where_it_had_one_and_nowhere_else(pair: Pair) -> None:
    registry, first, second = pair
    first.bias.grad = torch.ones(2)
    places = gradient_places(registry)
    first.weight.grad, first.bias.grad = torch.zeros(2, 2), None
    second.bias.grad = torch.zeros(2)

    put_in_places(registry, places)

    assert sorted(places.values()) == [[], [1]]
    assert first.weight.grad is None
    assert second.bias.grad is None
    assert torch.equal(first.bias.grad, torch.zeros(2))


def test_a_gradient_that_is_there_keeps_its_values(pair: Pair) -> None:
    registry, first, _ = pair
    first.weight.grad = torch.ones(2, 2)

    put_in_places(registry, gradient_places(registry))

    assert torch.equal(first.weight.grad, torch.ones(2, 2))


def test_the_first_gradient_of_each_optimizer_is_found_behind_parameters_without_one(
    pair: Pair,
) -> None:
    registry, first, second = pair
    first.bias.grad, second.weight.grad = torch.ones(2), torch.zeros(2, 2)

    found = list(earlier_gradients(registry))

    assert [bool(gradient.any()) for gradient in found] == [True, False]


def test_gradients_that_no_optimizer_clears_come_back() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    registry = Registry()
    registry.add_model(model)
    registry.add_optimizer(optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.zero_grad()
    kept = model[0].weight.grad.clone()
    saved = copy_state(TrainingState(registry).capture())
    places = gradient_places(registry)

    model[0].weight.grad = None
    put_in_places(registry, places)
    TrainingState(registry).restore(saved)

    assert torch.equal(model[0].weight.grad, kept)
    assert model[1].weight.grad is None
