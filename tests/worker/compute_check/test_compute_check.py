from __future__ import annotations

import math
import sys
import types
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from supervisor.codes import Warned
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import CorruptionFound
from supervisor.settings import ComputeCheckSettings
from supervisor.training_state.registry import Registry
from supervisor.worker.compute_check.compute_check import (
    BACKWARD,
    FORWARD,
    ComputeCheck,
    ComputeListener,
)
from supervisor.worker.core.boundaries import BoundarySchedule, Turns
from supervisor.worker.core.part import Ended
from tests.worker.compute_check.sick_machine import SickMachine, flip


def gradient(check: ComputeCheck | None, exponent: float = 1.0) -> torch.Tensor:
    torch.manual_seed(2)
    weight = torch.randn(7, requires_grad=True)

    def forward() -> torch.Tensor:
        return (weight * 1.3).prod() ** exponent

    loss = forward() if check is None else check.run(FORWARD, forward)
    if check is None:
        loss.backward()
    else:
        check.run(BACKWARD, torch.Tensor.backward, loss)
    assert weight.grad is not None
    return weight.grad


def test_gradients_that_torch_would_calculate_by_another_formula_are_left_alone() -> None:
    check = ComputeCheck(Registry())
    check.start(5)
    assert torch.equal(gradient(check), gradient(None))
    assert 0 < check.counts.calls < 5  # of the forward alone


def test_what_is_wrong_is_described_with_the_parameter_that_was_read() -> None:
    registry = Registry()
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    registry.add_model(model)
    check = ComputeCheck(registry)
    machine = SickMachine(
        "aten.addmm.default", lambda call, result: flip(result, place=4) if call == 0 else None
    )
    check.start(8)
    with machine:
        check.run(FORWARD, model, torch.ones(2, 4))
    (wrong,), cost_s = check.stop()
    assert check.step == -1
    assert cost_s > 0.0
    assert wrong.name == "aten.addmm.default in the forward, with 0.weight"
    assert wrong.index == (1, 1)
    assert (wrong.elements, wrong.bit) == (1, 30)
    assert "(bit 30 flipped); four repetitions give" in wrong.sentence()
    assert check.stop()[0] == []


def test_compiled_code_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = types.ModuleType("torch._dynamo.utils")
    utils.counters = {"frames": Counter(total=1)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    check = ComputeCheck(Registry())
    check.start(5)
    assert check.step == -1
    assert check.has_ended
    assert "compiled code" in check.reason


def test_an_error_of_ours_ends_it_and_says_why() -> None:
    def fails(call: int, result: torch.Tensor) -> None:
        if call == 1:
            raise MemoryError("no more")

    check = ComputeCheck(Registry())
    model = nn.Linear(4, 3)
    check.start(5)
    with SickMachine("aten.addmm.default", fails):
        check.run(FORWARD, model, torch.ones(2, 4))
    check.stop()
    assert check.has_ended
    assert check.reason == "MemoryError: no more"


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
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(compute_check=ComputeCheckSettings(**settings)),
        turns=Turns(BoundarySchedule()),
        is_experiment=False,
        warn=told_as,
    )
    return ComputeListener(context, check, told_as), check


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
