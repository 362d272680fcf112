"""Functions in C that gather tensors while the script trains within them."""

from __future__ import annotations

import gc
import linecache
from collections.abc import Callable

import pytest
import torch

from supervisor.worker.script_state import gathering_calls
from supervisor.worker.script_state.gathering_calls import unseen_gathering

found: list[str] = []


def step(number: int, look: Callable[[], str] = lambda: unseen_gathering({})) -> torch.Tensor:
    if number == 2:
        found.append(look())
    return torch.full((), float(number))


def names(gathering: Callable[[], object]) -> str:
    found.clear()
    gathering()
    return found[0].partition(" line ")[0]


def test_tensors_that_a_function_gathers_are_noticed() -> None:
    def summed() -> None:
        sum(step(number) for number in range(3))

    def unpacked() -> None:
        [*map(step, range(3))]

    assert names(summed) == "summed"
    assert names(unpacked) == "unpacked"


def test_they_are_noticed_in_a_small_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of all objects is a variable of the function that looks. Where it was walked, what
    was gathered counted as held, if the walk came so far."""
    everything = gc.get_objects

    def few() -> list[object]:
        return [one for one in everything() if issubclass(type(one), torch.Tensor)]

    monkeypatch.setattr(gathering_calls.gc, "get_objects", few)

    assert names(lambda: sum(step(number) for number in range(3))) == "<lambda>"


def test_a_list_that_a_variable_will_hold_is_none_of_them() -> None:
    def in_a_loop() -> None:
        kept = []
        for number in range(3):
            kept.append(step(number))

    assert names(in_a_loop) == ""


def test_a_method_with_the_name_of_one_that_gathers_gathers_nothing() -> None:
    def of_a_tensor() -> None:
        [step(number).sum() for number in range(3)]

    assert names(of_a_tensor) == ""


def test_where_there_is_no_source_a_call_may_gather() -> None:
    text = "def hidden():\n    list(map(step, range(3)))\n"
    scope = {"step": step}
    linecache.cache.pop("<nowhere>", None)
    exec(compile(text, "<nowhere>", "exec"), scope)

    assert names(scope["hidden"]) == "hidden"  # type: ignore[arg-type]
