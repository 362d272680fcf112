"""What the script has dropped belongs to no resume, whichever side still has it."""

from __future__ import annotations

import gc
from typing import Any

from torch import nn, optim

from supervisor.training_state.dropped import without_dropped
from supervisor.training_state.owners import find_owners
from supervisor.training_state.registry import Registry
from supervisor.training_state.state import TrainingState


class Search:
    """Two trials of a search, each with a model, an optimizer and its schedule."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.trials = [self._trial(width) for width in (3, 5)]
        self.variables: dict[str, Any] = {}

    def _trial(self, width: int) -> tuple[Any, ...]:
        model = nn.Linear(2, width)
        optimizer = optim.Adam(model.parameters())
        schedule = optim.lr_scheduler.StepLR(optimizer, 1)
        self.registry.add_model(model)
        self.registry.add_optimizer(optimizer)
        self.registry.add_scheduler(schedule)
        return model, optimizer, schedule

    @property
    def frames(self) -> dict[str, Any]:
        return {"main": self.variables}

    def state(self) -> dict[str, Any]:
        owners = find_owners(self.registry, self.frames)
        return TrainingState(self.registry).capture() | {"owners": owners}

    def names(self) -> list[str]:
        registry = self.registry
        return [*registry.models, *registry.optimizers, *registry.schedulers]


SECOND = ["model_1", "optimizer_1", "scheduler_1"]


def test_what_only_the_checkpoint_still_has_is_left_out() -> None:
    then, now = Search(), Search()
    for one in (then, now):
        one.variables = {"trial": one.trials[-1]}
    saved = then.state()
    del now.trials[0]

    rest = without_dropped(now.registry, saved, now.frames)

    assert [*rest["models"], *rest["optimizers"], *rest["schedulers"]] == SECOND
    assert now.names() == SECOND
    assert rest["owners"] == find_owners(now.registry, now.frames)
    TrainingState(now.registry).restore(rest)


def test_what_only_this_process_still_has_is_forgotten() -> None:
    then, now = Search(), Search()
    del then.trials[0]
    gc.collect()
    saved = then.state()

    rest = without_dropped(now.registry, saved, now.frames)

    assert rest is saved
    assert now.names() == SECOND


def test_what_a_variable_leads_to_is_never_forgotten() -> None:
    now = Search()
    saved = now.state()
    for part in ("models", "optimizers", "schedulers"):
        del saved[part][next(iter(saved[part]))]
    now.variables = {"trials": now.trials}

    without_dropped(now.registry, saved, now.frames)

    assert len(now.names()) == 6


def test_a_model_that_this_process_has_never_had_stays_missing() -> None:
    then, now = Search(), Search()
    then.trials.append(then._trial(9))
    saved = then.state()

    rest = without_dropped(now.registry, saved, now.frames)

    assert "model_2" in rest["models"]
