"""What was put back is compared to the bit, whatever it is."""

from __future__ import annotations

import math

import pytest
import torch

from supervisor.training_state.comparison import first_difference


def _state() -> dict[str, object]:
    weights = torch.tensor([1.0, math.nan, -0.0])
    return {"models": {"model_0": {"w": weights, "b": torch.ones(2)}}, "lr": [0.1, None]}


def test_equal_states_have_no_difference_also_with_nans() -> None:
    assert first_difference(_state(), _state()) is None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda s: s["models"]["model_0"]["w"].__setitem__(2, 0.0), "models.model_0.w"),
        (lambda s: s["models"]["model_0"].__setitem__("b", torch.ones(3)), "models.model_0.b"),
        (lambda s: s["models"]["model_0"].pop("w"), "models.model_0.w"),
        (lambda s: s["lr"].__setitem__(0, 0.2), "lr.0"),
        (lambda s: s["lr"].append(3), "lr.2"),
    ],
)
def test_the_first_difference_is_named(change: object, name: str) -> None:
    live = _state()
    change(live)  # type: ignore[operator]

    assert first_difference(_state(), live) == name
