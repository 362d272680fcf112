from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.training_state.registry import Registry
from supervisor.training_state.state import TrainingState, is_finite


class Counter:
    def state_dict(self) -> dict[str, int]:
        return {"n": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_names_follow_the_order_of_first_sight() -> None:
    registry = Registry()
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)

    names = [registry.add_model(m) for m in (generator, critic, generator)]

    assert names == ["model_0", "model_1", "model_0"]
    assert list(registry.models) == ["model_0", "model_1"]


def test_a_submodule_is_saved_with_its_root_alone() -> None:
    registry = Registry()
    root = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    registry.add_model(root)

    name = registry.add_model(root[1])

    assert name == "model_0"
    assert list(registry.models.values()) == [root]


def test_a_wrapper_takes_the_place_of_what_it_contains() -> None:
    registry = Registry()
    first, second, other = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    for model in (first, other, second):
        registry.add_model(model)
    wrapper = nn.ModuleList([first, second])

    registry.add_model(wrapper)

    assert registry.models == {"model_0": wrapper, "model_1": other}
    assert registry.add_model(second) == "model_0"


def test_what_the_script_drops_leaves_and_its_number_is_not_used_again() -> None:
    registry = Registry()
    kept = nn.Linear(1, 1)
    registry.add_model(nn.Linear(1, 1))
    gc.collect()

    name = registry.add_model(kept)

    assert registry.models == {"model_1": kept}
    assert name == "model_1"


def test_tracked_modules_and_optimizers_are_added_as_what_they_are() -> None:
    registry = Registry()
    model, counter = nn.Linear(1, 1), Counter()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    names = [
        registry.track("ema", model),
        registry.track("opt", optimizer),
        registry.track("counter", counter),
    ]

    assert names == ["model_0", "optimizer_0", "counter"]
    assert registry.tracked == {"counter": counter}


def test_tracking_something_without_a_state_names_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"track\(ema=\.\.\.\): dict has no state_dict"):
        Registry().track("ema", {})


def test_a_buffer_that_holds_nan_before_its_model_is_called_is_no_sick_state() -> None:
    model = nn.BatchNorm1d(2)
    model.register_buffer("rows", torch.full((3,), torch.nan))
    registry = Registry()
    registry.add_model(model)
    state = TrainingState(registry)

    assert is_finite(state.capture()) == (True, "")

    model.running_mean[0] = torch.nan

    assert is_finite(state.capture()) == (False, "model_0.running_mean")
