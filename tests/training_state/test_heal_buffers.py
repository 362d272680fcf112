"""What a poisoned batch leaves in the running figures of a normalisation."""

from __future__ import annotations

import torch
from torch import nn

from supervisor.training_state.model_state import heal_buffers, model_tensors


def test_running_figures_that_met_a_nan_come_back_and_masks_stay() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    model(torch.randn(8, 3))
    saved = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    model(torch.full((8, 3), torch.nan))
    assert model[1].running_mean.isnan().all()

    healed = heal_buffers(model, saved)

    assert sorted(healed) == ["1.running_mean", "1.running_var"]
    assert torch.equal(model[1].running_mean, saved["1.running_mean"])
    assert torch.equal(model[1].running_var, saved["1.running_var"])
    assert heal_buffers(model, saved) == []
