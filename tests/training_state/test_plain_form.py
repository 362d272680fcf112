from __future__ import annotations

import collections
import enum
import pathlib
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.training_state.plain_form import KIND, from_plain, to_plain


class Phase(enum.Enum):
    WARM = 1


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Progress:
    step: int
    best: float


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5)
values = st.recursive(
    scalars | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(scalars | st.just(KIND), inner, max_size=3)
        | st.lists(inner, max_size=3).map(collections.deque)
    ),
    max_leaves=10,
)


@given(values)
@settings(max_examples=50, deadline=None)
def test_containers_come_back_as_they_were(value: Any) -> None:
    left_out: list[str] = []

    returned = from_plain(to_plain(value, "value", left_out))

    assert returned == value
    assert type(returned) is type(value)
    assert left_out == []


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(b=1, a=2),
        collections.Counter("aab"),
        collections.defaultdict(list, {"a": [1]}),
        {1, 2},
        frozenset({"a"}),
        {(1, "a"): 2},
        collections.deque([1, 2], maxlen=2),
        Phase.WARM,
        Pair(1, 2),
        Progress(3, 0.5),
        pathlib.Path("a/b"),
        complex(1, -2),
        torch.Size([2, 3]),
        torch.float16,
        torch.device("cpu"),
        np.float64(0.1),
        bytearray(b"xy"),
        b"",
    ],
)
def test_other_values_come_back_with_their_class(value: Any) -> None:
    returned = from_plain(to_plain(value, "value", []))

    assert returned == value
    assert type(returned) is type(value)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64", "uint16", "<U3", "f8"])
def test_arrays_come_back_to_the_bit(dtype: str) -> None:
    array = np.ones((2, 3), dtype=dtype)[:, ::2]

    returned = from_plain(to_plain(array, "array", []))

    assert returned.dtype == array.dtype
    np.testing.assert_array_equal(returned, array)


def test_what_needs_pickle_is_left_out_by_name() -> None:
    left_out: list[str] = []

    plain = to_plain({"fine": 1, "hook": lambda x: x}, "tracked ema", left_out)

    assert plain == {"fine": 1, "hook": None}
    assert left_out == ["tracked ema['hook']: builtins.function cannot be saved without pickle"]


def test_a_cycle_is_left_out() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    left_out: list[str] = []

    to_plain(cycle, "loop", left_out)

    assert "nested deeper" in left_out[0]


def test_a_class_that_is_not_imported_becomes_its_fields() -> None:
    form = to_plain(Progress(3, 0.5), "progress", [])
    form["module"] = "no.such.module"

    assert from_plain(form) == {"step": 3, "best": 0.5}


def test_a_word_that_stands_in_code_comes_back_as_the_same_object() -> None:
    saved = {"".join(["exp_", "avg"]): "".join(["lo", "ss"])}

    found = from_plain(saved)

    assert next(iter(found)) is sys.intern("exp_avg")
    assert found["exp_avg"] is sys.intern("loss")
