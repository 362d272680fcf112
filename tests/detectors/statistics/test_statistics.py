from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.detectors.statistics.reference import Reference
from supervisor.detectors.statistics.robust_window import RobustWindow, is_leap

FLOATS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@settings(max_examples=50, deadline=None)
@given(FLOATS, st.integers(1, 20))
def test_median_and_mad_are_those_of_the_last_values(values: list[float], size: int) -> None:
    window = RobustWindow(size)

    for value in values:
        window.add(value)

    last = values[-size:]
    median = statistics.median(last)
    assert math.isclose(window.median, median, abs_tol=1e-9)
    mad = statistics.median([abs(v - median) for v in last])
    assert math.isclose(window.mad, mad, abs_tol=1e-6)
    assert list(window.held) == last


OPERATIONS = st.lists(
    st.one_of(
        st.floats(-1e6, 1e6).map(lambda value: ("add", value)),
        st.integers(1, 40).map(lambda size: ("shrink", size)),
        st.just(("ask", 0)),
    ),
    max_size=120,
)


@settings(max_examples=100, deadline=None)
@given(OPERATIONS, st.integers(1, 40))
def test_a_window_asked_now_and_then_knows_its_order(
    operations: list[tuple[str, float]], size: int
) -> None:
    window, last = RobustWindow(size), list[float]()

    for name, value in operations:
        if name == "add":
            window.add(value)
            last = [*last, value][-size:]
        elif name == "shrink":
            window.shrink(int(value))
            last = last[-int(value) :]
        elif last:
            assert (window.lowest, window.highest) == (min(last), max(last))
            assert window.median == statistics.median(last)
        if last and window.is_surely_near(value, 10.0):
            assert value - statistics.median(last) <= 10.0

    assert list(window.held) == last
    assert all(window.floor <= value <= window.ceiling for value in last)


def test_ordinary_values_are_seen_to_be_near_without_a_new_order() -> None:
    window = RobustWindow(50)
    for value in range(50):
        window.add(float(value))
    _ = window.median

    said = []
    for _ in range(60):
        window.add(25.0)
        said.append(window.is_surely_near(25.0, 20.0))

    assert all(said[:20])
    assert not all(said)  # the order is too old: nothing is said
    assert not window.is_surely_near(80.0, 20.0)


def test_a_window_ignores_what_is_not_finite() -> None:
    window = RobustWindow(3)

    for value in (1.0, math.nan, math.inf, 2.0):
        window.add(value)

    assert list(window.held) == [1.0, 2.0]


def test_a_reference_is_not_bent_by_outliers_but_adopts_a_level_that_stays() -> None:
    reference = Reference(size=20, lag=0, floor=0.02, adopt_after=30)
    for index in range(100):
        reference.push(1.0 + 0.01 * (index % 3))

    for _ in range(29):
        reference.push(9.0)
    before = reference.median
    for _ in range(5):
        reference.push(9.0)

    assert before < 1.1
    assert reference.median == 9.0


def test_a_reference_ends_a_few_values_ago() -> None:
    reference = Reference(lag=3, floor=0.02)

    for value in range(5):
        reference.push(float(value))

    assert list(reference.window.held) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("before", "value", "leaps"),
    [(2.0, 3.1, True), (2.0, 3.0, False), (-2.0, -0.9, True), (-2.0, -1.1, False)],
)
def test_a_leap_is_a_rise_by_half_of_what_was_there(
    before: float, value: float, leaps: bool
) -> None:
    assert is_leap(value, before) is leaps
    assert not is_leap(math.nan, before)
    assert not is_leap(value, math.nan)
