"""What a statement has computed before the call within which it stands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from supervisor.worker.script_state.stack_temporaries import (
    has_stack_temporaries,
    has_temporary_block,
)

found: list[bool] = []


def call(*given: Any) -> int:
    """Stands for a forward: looks at the function that calls it."""
    found.append(has_stack_temporaries(sys._getframe(1)))
    return 1


class Loss:
    """A loss function that is made where it is called."""

    def __call__(self, *given: Any) -> int:
        return 0


def function(*given: Any, **named: Any) -> int:
    return 0


def nothing_is_computed(a: int, b: Sequence[int], c: dict[str, int]) -> None:
    call(a)
    d = call(a, b[0])
    d = function(call(a), a - d)
    d += call(a)
    d = function(a, b[1:2], c["x"], call(a)) + 1
    d = Loss()(call(a), a)
    d = a * call(
        a,
    )
    [a, call(a)]
    if call(a) - 1 or call(b):
        return


def left_side(a: int, b: Sequence[int], c: dict[str, int]) -> None:
    (a - 1) * call(a)


def earlier_argument(a: int, b: Sequence[int], c: dict[str, int]) -> None:
    function(a - 1, call(a))


def earlier_keyword(a: int, b: Sequence[int], c: dict[str, int]) -> None:
    function(x=function(a), y=call(a))


def computed_index(a: int, b: Sequence[int], c: dict[str, int]) -> None:
    function(b[a - 1], call(a))


def place_that_is_added_to(a: int, b: Sequence[int], c: dict[str, int]) -> None:
    totals = {a: 1}
    totals[a] += call(a)


def in_a_function_within(a: int, b: Sequence[int], c: dict[str, int]) -> None:
    def inner() -> None:
        function(
            a - 1,
            call(a),
        )

    inner()


Statement = Callable[[int, Sequence[int], dict[str, int]], None]


def test_names_views_and_new_objects_are_no_computed_values() -> None:
    found.clear()

    nothing_is_computed(1, [1, 2, 3], {"x": 1})

    assert found == [False] * 10


@pytest.mark.parametrize(
    "statement",
    [
        *(left_side, earlier_argument, earlier_keyword, computed_index),
        *(place_that_is_added_to, in_a_function_within),
    ],
)
def test_what_is_computed_before_the_call_is_seen(statement: Statement) -> None:
    found.clear()

    statement(1, [1, 2, 3], {"x": 1})

    assert found == [True]


def test_a_function_without_source_may_have_any() -> None:
    found.clear()

    exec("call(1)", {"call": call})

    assert found == [True]


def in_a_loop(*given: Any) -> bool:
    return has_temporary_block(sys._getframe(1))


def test_a_loop_over_what_may_be_in_no_variable_is_seen() -> None:
    rows, seen = [1], []

    for _ in rows:
        seen.append(in_a_loop())
    for _, _ in zip(range(1), enumerate(rows), strict=True):
        seen.append(in_a_loop())
    for _ in map(str, rows[0:1]):
        seen.append(in_a_loop())
    for _ in range(len(rows) - 0):
        seen.append(in_a_loop())
    for _ in (row for row in rows):
        seen.append(in_a_loop())
    for _ in reversed([row + 1 for row in rows]):
        seen.append(in_a_loop())
    for _ in enumerate(rows + seen[:1], 1 + 1):
        seen.append(in_a_loop())
    seen.append(in_a_loop())

    assert seen == [False, False, False, False, True, True, True, True, False]


def test_a_comprehension_holds_what_it_has_gathered() -> None:
    rows = [1]

    seen = [in_a_loop() for _ in rows]
    seen += {number: in_a_loop() for number in rows}.values()
    seen += list(in_a_loop() for _ in rows)  # noqa: C400

    assert seen == [True, True, False]
