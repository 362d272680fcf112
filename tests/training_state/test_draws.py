"""What was drawn from the global generators, told in a few bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from supervisor.training_state.draws import advance, between, joined, look
from supervisor.training_state.rng import RngState

DRAWS: dict[str, Callable[[int], object]] = {
    "python": lambda n: [random.random() for _ in range(n)],
    "python gauss": lambda n: random.gauss(0.0, 1.0),
    "numpy": lambda n: np.random.rand(n),
    "numpy normal": lambda n: np.random.randn(2 * (n // 2) + 1),
    "torch": lambda n: torch.rand(n),
    "torch normal": lambda n: torch.randn(n),
    "torch normal in double precision": lambda n: torch.randn(n, dtype=torch.float64),
    "seeding anew": lambda n: (random.seed(n), np.random.seed(n), torch.manual_seed(n)),
    "nothing": lambda n: None,
}
Drawn = list[tuple[str, int]]
SOME = st.lists(st.tuples(st.sampled_from(sorted(DRAWS)), st.integers(1, 3000)), max_size=4)


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    state = RngState.capture()
    yield
    RngState.restore(state)


def _draw(draws: Drawn) -> None:
    for name, count in draws:
        DRAWS[name](count)


@given(seed=st.integers(0, 2**32 - 1), first=SOME, second=SOME)
def test_advancing_leads_where_drawing_led(seed: int, first: Drawn, second: Drawn) -> None:
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    begin = RngState.capture()
    states = [look()]
    for draws in (first, second):
        _draw(draws)
        states.append(look())
    expected = [random.random(), np.random.randn(), torch.randn(()).item(), random.gauss(0, 1)]
    drawn = [between(states[0], states[1]), between(states[1], states[2])]

    for way in (drawn, [joined(*drawn)]):
        RngState.restore(begin)
        for part in way:
            advance(part)
        assert look() == states[2]
        found = [random.random(), np.random.randn(), torch.randn(()).item(), random.gauss(0, 1)]
        assert found == expected


@pytest.mark.parametrize("count", [1, 700, 10_000])
def test_it_takes_few_bytes(count: int) -> None:
    before = look()
    _draw([("python", count), ("numpy", count), ("torch", count)])

    assert len(between(before, look())) < 200


def test_more_than_is_looked_through_is_kept_as_a_state() -> None:
    before, begin = look(), RngState.capture()
    torch.rand(100_000)
    after = look()
    drawn = between(before, after)
    RngState.restore(begin)

    advance(drawn)

    assert look() == after


def test_from_another_place_nothing_is_set() -> None:
    random.seed(1)
    before = look()
    random.random()
    drawn = between(before, look())
    random.seed(2)
    stand = look()

    with pytest.raises(ValueError, match="not where they were"):
        advance(drawn)

    assert look() == stand


def test_looking_draws_nothing() -> None:
    assert between(look(), look()) == b""
