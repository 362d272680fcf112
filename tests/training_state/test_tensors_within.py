"""The tensors of nested containers, found as torch's pytree finds them."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

from supervisor.training_state.tensors import tensors_within


class Pair(NamedTuple):
    """A tuple of a class of its own."""

    first: torch.Tensor
    second: Any


class Own:
    """Not a container."""

    inside = torch.ones(1)


ONE, TWO, THREE = torch.ones(1), torch.ones(2), torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    "value",
    [
        ONE,
        None,
        (ONE, [TWO, {"a": THREE, "b": 3.0}], "text"),
        {"x": (ONE, None), "y": Pair(TWO, [THREE])},
        [collections.OrderedDict(a=ONE, b=[TWO]), collections.deque([THREE])],
        [Own(), b"bytes", 1j, ONE],
        ((), [], {}),
    ],
)
def test_they_are_those_of_the_pytree_in_its_order(value: Any) -> None:
    expected = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]

    found = tensors_within(value)

    assert [id(one) for one in found] == [id(one) for one in expected]
