from __future__ import annotations

import math
import sys
import types
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from supervisor.codes import Warned
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import CorruptionFound
from supervisor.settings import ComputeCheckSettings
from supervisor.training_state.registry import Registry
from supervisor.worker.compute_check.compute_check import FORWARD, ComputeCheck
from supervisor.worker.core.part import Ended
from supervisor.worker.core.turns import Turns
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.live.compute_listener import ComputeListener
from tests.worker.compute_check.sick_machine import SickMachine, flip


class Told:
    """Journal, alerts and warnings in one."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.alerts: list[Any] = []
        self.warnings: list[tuple[str, Any]] = []

    def write(self, event: Any) -> bool:
        self.events.append(event)
        return True

    def tell(self, record: Any, alerts: tuple[Any, ...]) -> None:
        self.alerts += alerts

    def __call__(self, message: str, *, aloud: bool = False, found: Any = None) -> None:
        self.warnings.append((message, found))


@pytest.fixture
def told() -> Told:
    return Told()


def listener(told: Told, **settings: Any) -> tuple[ComputeListener, ComputeCheck]:
    check = ComputeCheck(Registry())
    told_as: Any = told
    found = ComputeListener(
        ComputeCheckSettings(**settings),
        turns=Turns(BoundarySchedule()),
        check=check,
        alerts=told_as,
        warn=told_as,
    )
    return found, check


def test_it_is_off_by_default(told: Told) -> None:
    off, check = listener(told)
    assert off.next_boundary(0) == (math.inf, math.inf)
    off.at_boundary(500)
    assert check.step == -1
    off.ends(Ended(steps=9, completed=True, parts=False))
    assert told.events == []


def test_every_so_many_steps_one_is_checked_and_what_it_cost_is_told(told: Told) -> None:
    on, check = listener(told, enabled=True, every_steps=10)
    model, checked, due = nn.Linear(3, 2), [], on.next_boundary(0)[0]
    for step in range(45):
        if step >= due:
            on.at_boundary(step)
            due = on.next_boundary(step)[0]
        if check.step == step:
            check.run(FORWARD, model, torch.ones(1, 3))
            checked.append(step)
    on.ends(Ended(steps=9, completed=True, parts=False))
    assert checked == [20, 30, 40]
    (found,) = told.events
    assert isinstance(found, StateFound)
    assert (found.updates, found.count) == (3, 3)
    assert told.warnings == []


def test_a_wrong_result_is_told_with_its_step(told: Told) -> None:
    on, check = listener(told, enabled=True, every_steps=1)
    machine = SickMachine(
        "aten.addmm.default", lambda call, result: flip(result) if call == 0 else None
    )
    on.at_boundary(20)
    with machine:
        check.run(FORWARD, nn.Linear(3, 2), torch.ones(1, 3))
    on.at_boundary(21)
    (found,) = told.events
    assert isinstance(found, CorruptionFound)
    assert (found.step, found.rule, found.healed) == (20, "compute", "in_place")
    assert told.alerts[0].kind == "wrong_result"
    assert told.warnings[0][1] is Warned.SUSPECT_HARDWARE
    assert check.step == 21


def test_where_nothing_can_be_checked_it_says_so_once(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = types.ModuleType("torch._dynamo.utils")
    utils.counters = {"frames": Counter(total=1)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    on, _ = listener(told, enabled=True)
    for step in (20, 21, 400):
        on.at_boundary(step)
    assert [message for message, _ in told.warnings] == [
        "nothing is calculated twice: compiled code cannot be calculated operator by operator"
    ]
    assert on.next_boundary(400) == (math.inf, math.inf)
