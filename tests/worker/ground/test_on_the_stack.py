"""What loops go over that no variable holds is found in the memory of the function's stack."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from supervisor.training_state.census.reach import Reach
from supervisor.worker.ground.on_the_stack import held_by_blocks

X = torch.arange(6.0)


class Batches:
    def __init__(self, values: torch.Tensor) -> None:
        self._waiting = list(values)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> torch.Tensor:
        if not self._waiting:
            raise StopIteration
        return self._waiting.pop()


def minibatches(values: torch.Tensor) -> Iterator[torch.Tensor]:
    centred = values - values.mean()
    yield from centred


def found(frame: FrameType) -> dict[str, list[float]]:
    """Returns number of the loop → values of the tensors that it holds, each memory once."""
    held = held_by_blocks([("f", frame)], {"main": {"X": X}, "f": frame.f_locals})
    return {name: _values(iterator) for name, iterator in held.items()}


def _values(iterator: Any) -> list[float]:
    reach: Mapping[str, Any] = {"": {"": iterator}}
    tensors = [p.value for p in Reach(reach) if isinstance(p.value, torch.Tensor)]
    return sorted({value for tensor in tensors for value in tensor.flatten().tolist()})


def test_iterators_of_nested_loops_are_found_by_their_number() -> None:
    seen = []
    for outer, _ in zip((X + 1).split(3), (X + 2).split(3), strict=True):
        for _, _inner in enumerate(outer * 10):
            seen.append(found(sys._getframe()))
            break

    assert [list(one) for one in seen] == [["f 0", "f 1"]] * 2
    assert seen[0]["f 0"] == [1, 2, 3, 4, 5, 6, 7]
    assert [one["f 1"] for one in seen] == [[10, 20, 30], [40, 50, 60]]


def test_generators_and_iterators_of_a_class_are_found() -> None:
    for _ in minibatches(X):
        of_generator = found(sys._getframe())
        break
    for _ in Batches(X + 0.5):
        of_class = found(sys._getframe())
        break

    assert of_generator["f 0"] == [-2.5, -1.5, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5]
    assert of_class["f 0"] == [0.5, 1.5, 2.5, 3.5, 4.5]


def test_what_a_variable_leads_to_and_numbers_are_left_out() -> None:
    parts = (X + 1).split(3)
    batches = minibatches(X)
    seen = []

    for _, _ in zip(parts, range(2), strict=True):
        seen.append(found(sys._getframe()))
    for _ in batches:
        seen.append(found(sys._getframe()))
    for _ in [2 * number for number in range(3)]:
        seen.append(found(sys._getframe()))
    seen.append(found(sys._getframe()))

    assert all(one == {} for one in seen)


def test_what_an_ended_loop_has_left_on_the_stack_is_not_taken() -> None:
    for _ in (X + 1).split(2):
        pass
    assert [float(row.sum()) for row in (X + 2).split(2)]

    assert found(sys._getframe()) == {}


def gathered(held: dict[str, list[float]]) -> list[list[float]]:
    return [values for name, values in held.items() if "below" in name]


def test_what_a_comprehension_has_gathered_so_far_is_found() -> None:
    seen: list[list[list[float]]] = []

    def look(value: torch.Tensor) -> torch.Tensor:
        seen.append(gathered(found(sys._getframe(1))))
        return value + 1

    [look(one) for one in X[:3]]
    {number: look(X[number]) for number in range(3)}
    [look(one * factor) for one in X[1:3] for factor in (10, 20)]

    assert seen[:3] == [[], [[1]], [[1, 2]]]
    assert seen[3:6] == [[], [[1]], [[1, 2]]]
    assert seen[6:] == [[], [[11]], [[11, 21]], [[11, 21]]]


def test_a_variable_with_the_name_of_a_comprehensions_is_found_beside_it() -> None:
    def look() -> int:
        held = found(sys._getframe(1))
        seen.append([value for values in held.values() for value in values])
        return 0

    seen: list[list[float]] = []
    one = X + 100
    [look() for one in range(2)]

    assert one.tolist() == [100, 101, 102, 103, 104, 105]
    if sys.version_info >= (3, 12):  # before, it stays a variable of the function around
        assert seen == [one.tolist()] * 2


def test_no_list_that_a_loop_goes_over_is_taken_for_gathered() -> None:
    for _ in [X + 1, X + 2]:
        held = found(sys._getframe())
        break

    assert gathered(held) == []
