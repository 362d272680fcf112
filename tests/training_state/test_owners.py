"""A resume finds whose each model and parameter is, in whatever order they come."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from supervisor.training_state.owners import find_owners, put_in_order
from supervisor.training_state.registry import Registry


class Script:
    """Two networks of one shape and two weights of one shape, each with an optimizer."""

    def __init__(self, *, backwards: bool) -> None:
        self.nets = [nn.Linear(3, 2), nn.Linear(3, 2)]
        self.weights = [torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)]
        self.registry = Registry()
        order = [1, 0] if backwards else [0, 1]
        for index in order:
            self.registry.add_model(self.nets[index])
        self.optimizers: dict[int, Any] = {}
        for index in order:
            self.optimizers[index] = torch.optim.Adam(self.nets[index].parameters())
            self.registry.add_optimizer(self.optimizers[index])
        self.schedulers: dict[int, Any] = {}
        for index in order:
            optimizer = self.optimizers[index]
            self.schedulers[index] = torch.optim.lr_scheduler.StepLR(optimizer, step_size=index + 1)
            self.registry.add_scheduler(self.schedulers[index])
        self.shared = torch.optim.Adam([self.weights[index] for index in order])
        self.registry.add_optimizer(self.shared)

    @property
    def frames(self) -> dict[str, Any]:
        return {"main": {"nets": self.nets, "weights": self.weights}}


def test_models_optimizers_and_parameters_of_another_order_get_their_names_back() -> None:
    then, now = Script(backwards=False), Script(backwards=True)
    saved = find_owners(then.registry, then.frames)
    assert find_owners(now.registry, now.frames) != saved

    problems = put_in_order(now.registry, saved, now.frames)

    assert problems == []
    assert find_owners(now.registry, now.frames) == saved
    assert now.registry.models == {"model_0": now.nets[0], "model_1": now.nets[1]}
    assert now.registry.optimizers["optimizer_0"] is now.optimizers[0]
    assert now.registry.schedulers["scheduler_0"] is now.schedulers[0]
    assert [id(p) for p in now.shared.param_groups[0]["params"]] == [id(w) for w in now.weights]


def test_the_same_order_changes_nothing() -> None:
    then, now = Script(backwards=True), Script(backwards=True)
    saved = find_owners(then.registry, then.frames)
    names = dict(now.registry.optimizers)

    assert put_in_order(now.registry, saved, now.frames) == []
    assert now.registry.optimizers == names


def test_what_no_variable_leads_to_cannot_be_told_apart() -> None:
    then, now = Script(backwards=False), Script(backwards=True)
    saved = find_owners(then.registry, {})

    problems = put_in_order(now.registry, saved, {})

    assert "which parameter is which cannot be told: no variable leads to some of them" in problems


def test_other_parameters_than_in_the_recorded_run_are_named() -> None:
    then, now = Script(backwards=False), Script(backwards=False)
    saved = find_owners(then.registry, then.frames)
    now.optimizers[1].param_groups[0]["params"] = [now.nets[0].weight, now.nets[0].bias]

    problems = put_in_order(now.registry, saved, now.frames)

    assert problems == ["optimizer_1 is not the one that it was in the recorded run"]
