"""An update is changed before it is made, and the change is taken back after it."""

from __future__ import annotations

import pytest
import torch

from supervisor.actions.controls import Controls
from supervisor.worker.core.progress import ScriptUse
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
