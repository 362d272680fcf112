"""The content of a tensor is read without a trace."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from supervisor.training_state.held_values import stamp
from supervisor.training_state.script_state.facts import fact_of
from supervisor.training_state.script_state.place import Place
from supervisor.training_state.tensors import bytes_of, cloned, first_difference, local, memory_of


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0),
        torch.arange(6.0)[2:],
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor(3, dtype=torch.int16),
        torch.zeros(0),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.ones(2, requires_grad=True),
    ],
    ids=["whole", "part", "transposed", "single", "empty", "conjugated", "parameter"],
)
def test_the_bytes_are_those_of_the_array(tensor: torch.Tensor) -> None:
    array = tensor.detach().resolve_conj().numpy()

    assert bytes(bytes_of(tensor)) == array.tobytes()


def test_the_bytes_keep_their_tensor() -> None:
    memory = memory_of(torch.full((1000,), 7, dtype=torch.uint8))

    torch.zeros(1000, dtype=torch.uint8)  # would take its place

    assert set(memory) == {7}


def test_what_was_looked_at_can_still_be_resized() -> None:
    tensor = torch.ones(4)

    bytes_of(tensor)
    stamp(tensor)
    fact_of(Place("tensor", tensor))

    assert tensor.resize_(1000).shape == (1000,)


def test_memory_that_was_set_free_holds_nothing() -> None:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)

    assert not bytes_of(tensor)


class _Refusing(torch.Tensor):
    """Refuses every operation."""

    @classmethod
    def __torch_function__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{func}: refused")


def test_a_class_derived_from_tensors_is_not_asked() -> None:
    tensor = torch.arange(3.0).as_subclass(_Refusing)
    tensor.unit = "m"  # type: ignore[attr-defined]

    copied = cloned(tensor)

    assert type(copied) is _Refusing
    assert vars(copied) == {"unit": "m"}
    assert type(local(tensor)) is torch.Tensor
    assert bytes(bytes_of(copied)) == bytes(bytes_of(torch.arange(3.0)))


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
