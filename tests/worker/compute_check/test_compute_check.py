from __future__ import annotations

import sys
import types
from collections import Counter

import pytest
import torch
from torch import nn

from supervisor.training_state.registry import Registry
from supervisor.worker.compute_check.compute_check import BACKWARD, FORWARD, ComputeCheck
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
    check.begin(5)
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
    check.begin(8)
    with machine:
        check.run(FORWARD, model, torch.ones(2, 4))
    (wrong,), cost_s = check.end()
    assert check.step == -1
    assert cost_s > 0.0
    assert wrong.name == "aten.addmm.default in the forward, with 0.weight"
    assert wrong.index == (1, 1)
    assert (wrong.elements, wrong.bit) == (1, 30)
    assert "(bit 30 flipped); four repetitions give" in wrong.sentence()
    assert check.end()[0] == []


def test_compiled_code_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = types.ModuleType("torch._dynamo.utils")
    utils.counters = {"frames": Counter(total=1)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    check = ComputeCheck(Registry())
    check.begin(5)
    assert check.step == -1
    assert check.has_ended
    assert "compiled code" in check.reason


def test_an_error_of_ours_ends_it_and_says_why() -> None:
    def fails(call: int, result: torch.Tensor) -> None:
        if call == 1:
            raise MemoryError("no more")

    check = ComputeCheck(Registry())
    model = nn.Linear(4, 3)
    check.begin(5)
    with SickMachine("aten.addmm.default", fails):
        check.run(FORWARD, model, torch.ones(2, 4))
    check.end()
    assert check.has_ended
    assert check.reason == "MemoryError: no more"
