"""`back_to_start` needs weights that were thrown far, not weights that left zero as they should."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from supervisor.actions.back_to_start import BackToStart
from supervisor.actions.base import carry_out
from tests.actions.small_context import Scene, build_scene


def moved(model: nn.Module, way: float) -> Scene:
    """Every entry has gone `way` since the first snapshot."""
    scene = build_scene(model)
    scene.snapshot()
    with torch.no_grad():
        for weight in model.parameters():
            weight += way
    scene.context.step = 20
    return scene


@pytest.mark.parametrize("first_size", [1e-4, 0.01, 0.1])
def test_small_first_weights_may_leave_zero(first_size: float) -> None:
    model = nn.Embedding(50, 8)
    nn.init.normal_(model.weight, 0, first_size)

    result = carry_out(BackToStart(), moved(model, 0.2).context)

    assert not result.applied
    assert "not been thrown far" in result.detail


@pytest.mark.parametrize("first_size", [1e-4, 0.01, 0.1])
def test_small_first_weights_that_were_thrown_far_are_put_back(first_size: float) -> None:
    model = nn.Embedding(50, 8)
    nn.init.normal_(model.weight, 0, first_size)
    first = model.weight.detach().clone()

    result = carry_out(BackToStart(), moved(model, 2.0).context)

    assert result.applied
    assert torch.equal(model.weight, first)
