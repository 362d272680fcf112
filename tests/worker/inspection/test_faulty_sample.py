"""Which sample of a batch is guilty: by its values, by the output, by the gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from supervisor.worker.inspection.faulty_sample import FaultySample, culprit_sample


class Distance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).pow(2).sum(1).sqrt()


class Share(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x / x.sum(1, keepdim=True)


def found(model: nn.Module, row: int, values: float) -> FaultySample:
    batch = torch.rand(6, 3) + 0.5
    batch[row] = values
    return culprit_sample(model, (batch,), {}, None)


@pytest.mark.parametrize(
    ("model", "values", "reason", "is_odd"),
    [
        (Share(), math.nan, "its own values are not finite", True),
        (Share(), 0.0, "alone it makes the output non-finite", False),
        (Distance(), 0.0, "alone it makes the gradient non-finite", False),
        (Distance(), 1e4, "its values are far from those of all others", True),
    ],
)
def test_the_guilty_row_is_found_with_its_reason(
    model: nn.Module, values: float, reason: str, is_odd: bool
) -> None:
    assert found(model, 4, values) == FaultySample(row=4, reason=reason, is_odd=is_odd)


def test_a_sound_batch_has_no_guilty_sample_and_leaves_no_gradient() -> None:
    model = Distance()

    assert found(model, 2, 1.0) == FaultySample()
    assert model.scale.grad is None
