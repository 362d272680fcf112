"""Where generators stand, and which of them can be moved on."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from supervisor.worker.recording.loading.fingerprint import CannotTell, fingerprint
from supervisor.worker.recording.loading.live_locals import live_names
from supervisor.worker.recording.loading.stream_place import place_of

ROWS = list(range(40))


def _plain() -> Iterator[Any]:
    for row in ROWS:
        yield row * 2


def _unpacked() -> Iterator[Any]:
    order = np.random.default_rng(0).permutation(40)
    for number, place in enumerate(order):
        try:
            found = ROWS[place]
        except IndexError:
            continue
        yield number, found


def _nested() -> Iterator[Any]:
    for shard in range(3):
        loaded = [shard * 20 + row for row in range(20)]
        yield from loaded


def _delegated() -> Iterator[Any]:
    for row in _plain():
        yield row + 1


def _filtered() -> Iterator[Any]:
    for row in ROWS:
        if row % 3:
            yield row


def _again_and_again() -> Iterator[Any]:
    while True:
        for first, second in zip(ROWS, ROWS, strict=True):
            yield first + second


def _counted() -> Iterator[Any]:
    for number in itertools.count():
        yield -number


def _mapped() -> Iterator[Any]:
    return map(str, ROWS)


def _by_number() -> Iterator[Any]:
    class Rows:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int) -> int:
            assert i not in range(5, 10), "it was to be left out"
            return ROWS[i]

    yield from Rows()


@pytest.mark.parametrize(
    "make",
    [_plain, _unpacked, _nested, _delegated, _filtered, _again_and_again, _counted, _mapped],
)
def test_a_stream_is_moved_on_to_where_it_would_have_come(
    make: Callable[[], Iterator[Any]],
) -> None:
    through = make()
    first = list(itertools.islice(through, 3))
    place = place_of(through)
    assert len(list(itertools.islice(through, 9))) == 9
    later = place_of(through)
    moved = make()
    assert list(itertools.islice(moved, 3)) == first

    assert later.follows(place)
    place_of(moved).move(later.left[-1])

    assert list(itertools.islice(moved, 5)) == list(itertools.islice(through, 5))


def test_a_sequence_of_the_script_is_not_asked_for_what_is_left_out() -> None:
    stream = _by_number()
    assert next(stream) == 0

    place = place_of(stream)
    place.move(place.left[-1] - 9)

    assert next(stream) == 10


def _counting() -> Iterator[Any]:
    seen = 0
    for row in ROWS:
        seen += row
        yield seen


def _counting_by_hand() -> Iterator[Any]:
    number = 0
    while number < 40:
        yield ROWS[number]
        number += 1


def _shared_count() -> Iterator[Any]:
    seen = 0

    def more() -> int:
        nonlocal seen
        seen += 1
        return seen

    for row in ROWS:
        yield row + more()


def _counting_in_an_expression() -> Iterator[Any]:
    number = 0
    for row in ROWS:
        number = [number + 1, (yield row + number)][0]


def _delegating_in_an_expression() -> Iterator[Any]:
    number = 0
    while True:
        number = [number + 1, (yield from _numbered(number))][0]


def _numbered(number: int) -> Iterator[Any]:
    for row in ROWS:
        yield row + number


def _toggling() -> Iterator[Any]:
    is_odd = False
    for row in ROWS:
        is_odd = not is_odd
        yield -row if is_odd else row


def _reading_all() -> Iterator[Any]:
    for row in ROWS:
        seen = locals().get("seen", 0) + row
        yield seen


class _Noting:
    rows: tuple[int, ...] = ()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


def _within() -> Iterator[Any]:
    noting = _Noting()
    note = functools.partial(setattr, noting, "rows")
    with noting:
        noting = None  # type: ignore[assignment]
        for row in ROWS:
            note((*note.args[0].rows, row))
            yield sum(note.args[0].rows)


@pytest.mark.parametrize("make", [_counting, _shared_count, _toggling, _reading_all])
def test_a_variable_that_is_counted_up_is_seen(make: Callable[[], Iterator[Any]]) -> None:
    stream = make()
    next(stream)
    place = place_of(stream)

    next(stream)

    assert not place_of(stream).follows(place)


def test_a_new_shard_is_no_mere_going_on() -> None:
    stream = _nested()
    for _ in range(20):
        next(stream)
    place = place_of(stream)

    next(stream)

    assert not place_of(stream).follows(place)


class _Own:
    def __iter__(self) -> _Own:
        return self

    def __next__(self) -> int:
        return 1


def _over_own() -> Iterator[Any]:
    yield from _Own()


def _over_file() -> Iterator[Any]:
    with open(__file__) as file:
        yield from file


@pytest.mark.parametrize(
    "make",
    [
        *(_counting_by_hand, _over_own, _over_file),
        *(_counting_in_an_expression, _delegating_in_an_expression),
    ],
)
def test_what_hides_its_place_is_refused(make: Callable[[], Iterator[Any]]) -> None:
    stream = make()
    next(stream)

    with pytest.raises(CannotTell):
        place_of(stream)


def test_variables_that_are_assigned_before_they_are_read_do_not_matter() -> None:
    def stream(scale: float) -> Iterator[Any]:
        generator, last = random.Random(0), 0.0
        for row in ROWS:
            value = row * scale
            if value > 3:
                last = value
            yield value + generator.random()
        print(last)

    waiting: Any = stream(0.5)
    next(waiting)

    assert live_names(waiting.gi_frame) == {"scale", "generator", "last"}


def test_what_an_exception_handler_reads_matters() -> None:
    def stream() -> Iterator[Any]:
        for row in ROWS:
            try:
                value = row
                yield value
            except GeneratorExit:
                print(value)
                raise

    waiting: Any = stream()
    next(waiting)

    assert "value" in live_names(waiting.gi_frame)


def test_what_a_function_that_is_kept_reaches_is_compared() -> None:
    stream = _within()
    next(stream)
    place = place_of(stream)
    before = fingerprint([*place.kept, *place.over])

    next(stream)

    assert fingerprint([*place.kept, *place.over]) != before


def test_the_generator_behind_a_method_in_c_is_compared() -> None:
    draw = np.random.default_rng(0).random
    before = fingerprint([draw])

    draw()

    assert fingerprint([draw]) != before
