"""An update is changed before it is made, and the change is taken back after it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from supervisor.actions.controls import Controls
from supervisor.worker.core.progress import ScriptUse
from supervisor.worker.treatment import update_controls
from supervisor.worker.treatment.update_controls import UpdateControls, UpdatePlan


def test_an_optimizer_without_a_rate_or_that_finds_its_own_is_updated_as_it_is() -> None:
    for group in ({}, {"lr": None}):
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.Optimizer([weight], dict(group))
        reduced, told = Controls(), []
        reduced.lr_factor, reduced.lr_limit = 0.5, 0.1
        controls = UpdateControls(reduced, ScriptUse(), lambda step, why: None, told.append)

        controls.apply(optimizer, 0, controls.plan(optimizer, 0))
        controls.update_ended()

        assert optimizer.param_groups == [{"params": [weight], **group}]
        assert not told


def test_gradients_that_are_still_scaled_are_clipped_to_the_scaled_bound() -> None:
    """Those of a fused optimizer, which divides by the scale itself."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([weight], 0.1, fused=True)
    weight.grad = torch.tensor([3000.0, 4000.0])
    controls = UpdateControls(Controls(), ScriptUse(), lambda step, why: None)

    controls.apply(optimizer, 0, UpdatePlan(max_norm=2.0), scale=1024.0)

    assert float(weight.grad.norm()) / 1024.0 == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("skip", ["", "a reason"])
def test_where_few_parameters_are_in_use_they_are_collected_once(
    skip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_controls, "MANY", 1)
    own = torch.optim.Adam._init_group  # type: ignore[attr-defined]
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(9)]
    optimizer = torch.optim.Adam(weights, lr=0.1)
    controls = UpdateControls(Controls(), ScriptUse(), lambda step, why: None)
    times = []

    def counted(*args: Any) -> Any:
        times.append(args)
        return own(*args)

    counted.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.optim.Adam, "_init_group", counted)
    for step in range(3):
        weights[step].grad = torch.ones(2)
        controls.step_follows = True
        found = controls.gradients(optimizer)
        assert [id(gradient) for gradient in found] == [id(p.grad) for p in weights[: step + 1]]
        controls.apply(optimizer, step, controls.plan(optimizer, step, skip if step == 2 else ""))
        optimizer.step()
        controls.update_ended()

    assert len(times) == (4 if skip else 3)
    assert bool(weights[2].any()) is not bool(skip)
    assert (weights[2] in optimizer.state) is not bool(skip)
    assert not any(weight.any() for weight in weights[3:])
