"""The content of a tensor is read without a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from supervisor.training_state.census.facts import fact_of
from supervisor.training_state.census.place import Place
from supervisor.training_state.held_values import stamp
from supervisor.training_state.tensors import bytes_of, cloned, local, memory_of


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
