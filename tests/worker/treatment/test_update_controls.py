"""An update is changed before it is made, and the change is taken back after it."""

from __future__ import annotations

import pytest
import torch

from supervisor.actions.controls import Controls
from supervisor.worker.core.progress import ScriptUse
from supervisor.worker.treatment.update_controls import UpdateControls, UpdatePlan


def test_gradients_that_are_still_scaled_are_clipped_to_the_scaled_bound() -> None:
    """Those of a fused optimizer, which divides by the scale itself."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([weight], 0.1, fused=True)
    weight.grad = torch.tensor([3000.0, 4000.0])
    controls = UpdateControls(Controls(), ScriptUse(), lambda step, why: None)

    controls.apply(optimizer, 0, UpdatePlan(max_norm=2.0), scale=1024.0)

    assert float(weight.grad.norm()) / 1024.0 == pytest.approx(2.0, rel=1e-4)
