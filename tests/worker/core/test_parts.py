"""Listeners are called in their order, and one that fails does not take the others with it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from supervisor.storage.journal.journal import Journal
from supervisor.worker.core.boundaries import BoundarySchedule
from supervisor.worker.core.breakers import Breakers
from supervisor.worker.core.part import Part
from supervisor.worker.core.parts import Parts
from supervisor.worker.core.process_signs import ExitRequest


class Every(Part):
    """Wants a boundary every few steps, and writes down those that it gets."""

    def __init__(self, name: str, apart: int, told: list[tuple[str, int]]) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._apart = apart
        self._next = 0
        self._told = told

    def at_boundary(self, step: int) -> None:
        self._told.append((self.name, step))
        if step >= self._next:
            self._next = step + self._apart
        if self.error is not None:
            raise self.error

    def next_boundary(self, step: int) -> tuple[float, float]:
        return self._next, math.inf


class Ward:
    def __init__(self, folder: Path) -> None:
        self.told: list[tuple[str, int]] = []
        self.first, self.second = Every("first", 10, self.told), Every("second", 4, self.told)
        self.schedule = BoundarySchedule()
        journal = self.journal = Journal(folder / "events.jsonl", attempt=1, rank=0)
        self.breakers = Breakers(journal, lambda: None, lambda: None)
        self.boundary = Parts([self.first, self.second], self.schedule, self.breakers, journal)

    def go(self, steps: range) -> list[int]:
        """Goes through boundaries as the monitor does; returns those that are looked at."""
        found = []
        for step in steps:
            if step >= self.schedule.step:
                found.append(step)
                self.boundary.at_boundary(step)
        return found


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


def test_only_boundaries_that_a_listener_needs_are_looked_at(ward: Ward) -> None:
    assert ward.go(range(21)) == [0, 4, 8, 10, 12, 16, 20]
    assert ward.told[:4] == [("first", 0), ("second", 0), ("first", 4), ("second", 4)]


def test_a_listener_that_fails_is_switched_off_alone(ward: Ward) -> None:
    ward.first.error = OSError("the disk is full")

    ward.go(range(40))

    assert [step for name, step in ward.told if name == "first"] == [0, 4, 8]
    assert [step for name, step in ward.told if name == "second"] == list(range(0, 40, 4))


class _Timed(Part):
    def __init__(self, name: str, time: float, *, may_save: bool) -> None:
        self.name, self._time = name, time
        self.may_save = may_save  # type: ignore[misc]

    def at_boundary(self, step: int) -> None: ...

    def next_boundary(self, step: int) -> tuple[float, float]:
        return math.inf, self._time


def test_a_look_that_saves_nothing_is_no_time_at_which_the_state_may_be_saved(ward: Ward) -> None:
    parts: list[Part] = [_Timed("a", 5.0, may_save=False), _Timed("b", 9.0, may_save=True)]

    Parts(parts, ward.schedule, ward.breakers, ward.journal).at_boundary(3)

    assert (ward.schedule.time, ward.schedule.saving_time) == (5.0, 9.0)


def test_a_process_that_is_to_end_ends(ward: Ward) -> None:
    ward.first.error = ExitRequest("restart", "asked")

    with pytest.raises(ExitRequest):
        ward.boundary.at_boundary(3)
    assert ("second", 3) not in ward.told
