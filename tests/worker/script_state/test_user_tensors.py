"""What the user's variables hold beside models and optimizers."""

from __future__ import annotations

import torch

from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import copy_state
from supervisor.worker.script_state.user_tensors import UserTensors


def test_a_rollback_puts_an_average_back_that_still_exists() -> None:
    average, loss = torch.ones(2, 3), torch.tensor(0.5)
    variables = {"main": {"average": [average], "loss": loss}}
    held = UserTensors(Registry())
    held.start({"main": {}})

    held.find(variables)
    del loss, variables["main"]["loss"]
    snapshot = copy_state({"held": held.lasting()})
    average.fill_(float("nan"))
    held.put_back_lasting(snapshot["held"])

    assert list(snapshot["held"]) == ["main.average[0]"]
    assert torch.equal(average, torch.ones(2, 3))


def test_a_rollback_leaves_a_batch_alone_that_has_the_name_of_an_earlier_one() -> None:
    average, batch = torch.ones(3), torch.zeros(3)
    variables = {"main": {"average": average, "batch": batch}}
    held = UserTensors(Registry())
    held.start({"main": {}})

    held.find(variables)
    snapshot, look = copy_state({"held": held.lasting()}), held.looks
    variables["main"]["batch"] = batch = torch.full((3,), 7.0)
    average.fill_(2.0)
    held.find(variables)  # the state before the rollback is kept
    held.put_back_lasting(snapshot["held"], look)

    assert torch.equal(average, torch.ones(3))
    assert torch.equal(batch, torch.full((3,), 7.0))


def test_a_rollback_zeroes_a_poisoned_state_and_leaves_a_data_set_as_it_is() -> None:
    data, state = torch.full((2, 3), float("nan")), torch.ones(2, 3)
    variables = {"main": {"data": data, "state": state}}
    held = UserTensors(Registry())
    held.start(variables)

    state.fill_(float("nan"))
    healed = held.heal(variables)

    assert healed == ["main.state"]
    assert torch.equal(state, torch.zeros(2, 3))
    assert data.isnan().all()
