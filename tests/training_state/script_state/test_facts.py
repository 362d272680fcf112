"""Facts: equal for equal values, and most of them hold the value itself."""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import io
import random
import sqlite3
import types
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supervisor.training_state.script_state.facts import (
    CannotPutBack,
    fact_of,
    put_generator_back,
    value_of,
)
from supervisor.training_state.script_state.inside_containers import content, is_plain
from supervisor.training_state.script_state.place import Place
from supervisor.training_state.script_state.reach import Reach

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=4),
        st.sets(st.integers(), max_size=4),
        st.builds(collections.deque, st.lists(inner, max_size=3), st.just(5)),
    ),
    max_leaves=12,
)


def fact(value: Any) -> str:
    return fact_of(next(iter(Reach({"main": {"x": value}}))))


@pytest.mark.parametrize(
    "value",
    [
        *(np.int64(-88), np.uint8(7), np.float64(0.1), np.float32(1 / 3), np.float16(1e-7)),
        *(
            np.float64("nan"),
            np.float32("-inf"),
            np.bool_(True),
            np.bool_(False),
            np.float64(1e300),
        ),
    ],
)
def test_a_number_of_numpy_comes_back_from_its_fact(value: Any) -> None:
    back = value_of(fact(value))

    assert type(back) is type(value)
    assert back.tobytes() == value.tobytes()


@given(PLAIN)
def test_a_plain_value_comes_back_from_its_fact_to_the_bit(value: Any) -> None:
    text = fact(value)

    back = value_of(text)

    assert repr(back) == repr(value) or "{" in repr(value)  # of sets and dictionaries the order
    assert type(back) is type(value)
    assert fact(back) == text or '"set"' in text  # the order of one that has shrunk may be another


@pytest.mark.parametrize("items", [[0, 8], [8, 0], [7, 15], [15, 7], [1, 9, 17], ["b", "a"]])
def test_a_set_comes_back_in_the_order_in_which_a_loop_met_it(items: list[Any]) -> None:
    for value in (set(items), frozenset(items)):
        assert list(value_of(fact(value))) == list(value)


@given(PLAIN, PLAIN)
def test_different_plain_values_have_different_facts(one: Any, other: Any) -> None:
    same = type(one) is type(other) and repr(one) == repr(other)
    if not same and not isinstance(one, (dict, set)):
        assert fact(one) != fact(other)


def test_long_texts_and_lists_are_told_apart_but_cannot_be_put_back() -> None:
    losses = [float(i) for i in range(10_000)]
    texts = [fact("a" * 5000), fact("a" * 5000 + "b"), fact(losses), fact([*losses[:-1], 0.5])]

    assert len(set(texts)) == 4
    for text in texts:
        with pytest.raises(CannotPutBack):
            value_of(str(text))


def test_a_very_long_list_is_known_by_its_length_and_ends() -> None:
    numbers = list(range(200_000))
    assert is_plain(numbers)
    assert content(numbers) != content([*numbers, 1])
    assert content(numbers) != content([*numbers[:-1], 1])


def test_a_file_in_memory_is_known_by_its_place_and_content() -> None:
    one, read, other = io.StringIO("a\nb"), io.StringIO("a\nb"), io.StringIO("a\nc")
    read.readline()

    assert len({fact(stream) for stream in (one, read, other)}) == 3
    assert fact(io.BytesIO(b"x")) == fact(io.BytesIO(b"x"))


def test_tensors_and_arrays_differ_by_content_shape_and_type() -> None:
    values = [
        *(torch.zeros(2), torch.ones(2), torch.zeros(2, 1), torch.zeros(2, dtype=torch.float64)),
        *(np.zeros(2), np.ones(2), np.zeros(2, np.float32), np.float32(1), np.float64(1)),
    ]
    assert len({fact(value) for value in values}) == len(values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.Generator().manual_seed(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.RandomState(3),
        lambda: random.Random(3),
    ],
)
def test_a_random_generator_is_put_back_to_its_fact(make: Any) -> None:
    def draw(generator: Any) -> float:
        if isinstance(generator, torch.Generator):
            return torch.rand(1, generator=generator).item()
        return float(generator.random())

    generator = make()
    draw(generator)
    then = str(fact(generator))
    drawn = draw(generator)
    assert fact(generator) != then

    put_generator_back(generator, then)

    assert fact(generator) == then
    assert draw(generator) == drawn


def test_all_layers_of_a_class_have_one_fact_and_a_class_of_the_script_its_own() -> None:
    class Linear(torch.nn.Linear):
        pass

    first, second = fact(torch.nn.Linear(2, 2)), fact(torch.nn.Linear(3, 1))

    assert first == second == "a torch.nn.modules.linear.Linear"
    assert fact(Linear(2, 2)) == f"a {__name__}.{Linear.__qualname__}"


def test_a_database_tells_how_often_it_was_changed() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("create table losses (value real)")
    before = fact_of(Place("main.database", database))

    database.execute("insert into losses values (1.0)")

    assert fact_of(Place("main.database", database)) != before
    database.close()


@pytest.mark.parametrize(
    ("value", "change"),
    [(hashlib.sha256(), "update"), (hashlib.blake2b(), "update"), (zlib.compressobj(), "compress")],
    ids=["a hash", "a hash of Python's own", "a stream"],
)
def test_what_c_code_has_taken_in_is_told(value: Any, change: str) -> None:
    before = fact(value)

    getattr(value, change)(b"more")

    assert fact(value) != before


class ImportsWhenAsked(types.ModuleType):
    """Written as TensorFlow's, PyG's and many others are."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"imported for {name}")


def test_a_module_that_imports_when_it_is_asked_is_not_asked() -> None:
    assert fact(ImportsWhenAsked("lazy")) == "ImportsWhenAsked lazy"


def test_a_module_that_python_imports_lazily_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_one.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("late_one")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert fact(module) == "_LazyModule late_one"
