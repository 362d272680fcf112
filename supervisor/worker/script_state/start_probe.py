"""Which looks into Python and torch work on this interpreter, tried on situations whose answer is
known. Most of them read what Python promises to nobody: memory of frames, bytecode, what the
garbage collector is told.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import platform
import sys
import types
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch

from supervisor.training_state.script_state.inside_objects import (
    TELLS_THE_COLLECTOR,
    FrameVariables,
    held_by,
    returned_before,
)
from supervisor.training_state.script_state.place import write_cell
from supervisor.training_state.script_state.reach import Reach
from supervisor.training_state.script_state.single_values import position
from supervisor.worker.script_state.gathering_calls import is_gathered
from supervisor.worker.script_state.user_frames import held_by_blocks


@functools.cache
def blind_looks() -> tuple[str, ...]:
    """Returns what cannot be seen on this interpreter, each with the reason; empty if nothing.

    Called in a process that resumes, before anything is called exact: some 50 ms, once.
    """
    where = f"Python {platform.python_version()} with torch {torch.__version__}"
    found = []
    for name, works in LOOKS.items():
        try:
            why = "" if works() else "what is known to be there was not found"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why:
            found.append(f"on {where} nobody can see {name} ({why})")
    return tuple(found)


def _sees_stacks() -> bool:
    held: dict[str, Any] = {}
    one, two, three = np.zeros(1), np.zeros(2), np.zeros(3)
    made = {1: one, 2: two, 3: three}.pop  # so that no variable of `around` leads there

    def look(is_last: bool) -> np.ndarray[Any, Any]:
        frames: list[tuple[str, types.FrameType]] = []
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code in codes:
            frames.append((str(len(frames)), frame))
            frame = frame.f_back
        if is_last:  # it goes through all objects of the process
            held.update(held_by_blocks(frames, {}))
        return three

    def around() -> None:
        for _ in zip([made(1), 0], strict=True):
            with contextlib.closing(types.SimpleNamespace(held=made(2), close=int)):
                [look(is_last) for is_last in (False, True)]
            break

    inner = [each for each in around.__code__.co_consts if isinstance(each, types.CodeType)]
    codes = {around.__code__, *inner}  # before Python 3.12 a comprehension has a frame of its own
    around()
    found = {id(place.value) for place in Reach({"": held})}
    return {id(one), id(two), id(three)} <= found


def _writes_variables() -> bool:
    def write() -> None:
        FrameVariables(sys._getframe(1))["value"] = 2

    value = 1
    write()
    waiting: Any = _waits([1, 2, 3])
    next(waiting)
    FrameVariables(waiting.gi_frame)["kept"] = 5
    return value == 2 and next(waiting) == 5


def _waits(numbers: list[int]) -> Generator[Any, Any, None]:
    kept = 1
    for _ in numbers:
        yield kept
    while True:
        kept = 1 * np.zeros(1) + (yield kept)


def _sees_waiting() -> bool:
    waiting: Any = _waits([1, 2, 3])
    next(waiting)
    in_loop = type(iter([])) in map(type, held_by(waiting))
    for _ in range(3):
        next(waiting)
    return in_loop and np.ndarray in map(type, held_by(waiting))


def _sees_closures() -> bool:
    value = 1

    def inner() -> int:
        return value

    assert inner.__closure__ is not None
    (cell,) = inner.__closure__
    was = cell.cell_contents
    write_cell(cell, "value", 2)
    return was == 1 and inner() == 2


def _sees_iterators() -> bool:
    moved: list[Iterator[Any]] = [iter([4, 5, 6]), iter((4, 5)), iter(range(4, 9))]
    moved += [iter("ab"), iter("äb"), iter(np.zeros(2))]
    before = list(map(position, moved))
    for one in moved:
        next(one)
    return all(map(operator.ne, before, map(position, moved)))


def _sees_caches() -> bool:
    found = np.zeros(1)
    cached = functools.lru_cache(lambda number: found)
    cached(1)
    return any(one is found for one in returned_before(cached))


def _sees_gathering() -> bool:
    seen: list[bool] = []

    def step(number: int) -> int:
        frame: Any = sys._getframe()
        seen.append(is_gathered(frame, frame.f_back))
        seen.append(is_gathered(frame.f_back, frame.f_back.f_back))
        return number

    sum(step(number) for number in range(1))  # within the generator, and it within `sum`
    [*map(step, range(1))]
    is_told = bool(torch.Tensor.__flags__ & TELLS_THE_COLLECTOR)
    return seen[:3] == [False, True, True] and is_told


LOOKS: dict[str, Callable[[], bool]] = {
    "what loops, contexts and comprehensions hold on the stack": _sees_stacks,
    "variables of functions under way, to write them": _writes_variables,
    "what a waiting generator holds in no variable": _sees_waiting,
    "what closures hold": _sees_closures,
    "where Python's own iterators stand": _sees_iterators,
    "what caches of functions hold": _sees_caches,
    "whether a function in C gathers what is computed": _sees_gathering,
}
"""What is looked at → whether the look finds what is known to be there."""
