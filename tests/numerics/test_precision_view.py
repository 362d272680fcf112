"""FP32 against the precision in use, at the state of the moment."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from supervisor.numerics.model_call import state_kept
from supervisor.numerics.precision_view import view_precision


class Scores(nn.Module):
    """Its products overflow FP16; what it returns does not."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4, bias=False)
        nn.init.constant_(self.up.weight, 100.0)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        h = self.up(x)
        masked = torch.matmul(h, h.T).masked_fill(torch.eye(len(x)).bool(), -1e4)
        return torch.softmax(masked * scale, -1)


def test_the_layer_and_the_tensor_that_overflow_are_named_with_their_size() -> None:
    with torch.autocast("cpu", torch.float16):
        view = view_precision(Scores(), (torch.ones(3, 4),), {"scale": 0.5})

    assert view is not None
    assert (view.dtype, view.autocast) == ("fp16", True)
    assert (view.module, view.operation) == ("(model)", "mm")
    assert view.overflow is not None
    assert view.overflow.largest == 4 * 400.0**2
    assert view.overflow.saturated_share == 1.0
    assert math.isinf(view.layers["(model)"].relative_error)
    assert [layer["name"] for layer in view.to_dict()["layers"]] == ["up", "(model)"]


def test_weights_of_a_small_format_count_and_fp32_does_not() -> None:
    half = nn.Linear(4, 2).to(torch.bfloat16)

    view = view_precision(half, (torch.ones(3, 4, dtype=torch.bfloat16),), {})

    assert view is not None
    assert (view.dtype, view.autocast, view.overflow) == ("bf16", False, None)
    assert view_precision(nn.Linear(4, 2), (torch.ones(3, 4),), {}) is None


class Counting(nn.Module):
    """Its state is no parameter and no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.calls, self.seen, self.memory = 0, [0.5], torch.zeros(2)
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(float(self.calls))
        self.memory = self.memory + 1
        self.total += 1
        return self.layer(x) + torch.rand(2)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_look_leaves_counters_memories_and_generators_as_they_were(in_place: bool) -> None:
    model = Counting()
    memory, drawn = model.memory, torch.get_rng_state()

    with state_kept(model):
        model(torch.ones(1, 2))
        if in_place:
            memory.add_(5)

    assert (model.calls, model.seen, float(model.total)) == (0, [0.5], 0.0)
    assert model.memory is memory
    assert torch.equal(memory, torch.zeros(2))
    assert torch.equal(torch.get_rng_state(), drawn)
