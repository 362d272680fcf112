from __future__ import annotations

import pytest
import torch
from torch import nn

from supervisor.actions.base import carry_out
from supervisor.actions.fp32 import Fp32Modules
from tests.actions.small_context import build_scene


class Probed(nn.Module):
    """Notes the precision that its softmax returns."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.softmax = nn.Softmax(dim=-1)
        self.returned = torch.float64

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.softmax(self.linear(x))
        self.returned = output.dtype
        return output


def spy(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    SEEN.append((args[0].dtype, torch.is_autocast_enabled("cpu")))


SEEN: list[tuple[torch.dtype, bool]] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


def forward(model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 4))


def test_a_fragile_module_sees_fp32_outside_autocast_and_hands_on_what_it_got() -> None:
    model = Probed()
    context = build_scene(model=model, uses_autocast=True).context
    protect = Fp32Modules()

    result = carry_out(protect, context)
    model.softmax.register_forward_pre_hook(spy)
    forward(model)
    carry_out(protect, context, undo=True)
    forward(model)

    assert result.fields["modules"] == ["softmax"]
    inside, after = SEEN
    assert inside == (torch.float32, False)
    assert after == (torch.bfloat16, True)


def test_what_it_returns_has_the_precision_that_came_in() -> None:
    model = Probed()
    carry_out(Fp32Modules(), build_scene(model=model, uses_autocast=True).context)

    forward(model)

    assert model.returned == torch.bfloat16


def test_modules_can_be_named() -> None:
    scene = build_scene(model=Probed(), uses_autocast=True)

    result = carry_out(Fp32Modules(frozenset({"linear"})), scene.context)

    assert result.fields["modules"] == ["linear", "softmax"]


def test_an_error_inside_leaves_autocast_as_it_was() -> None:
    model = Probed()
    carry_out(
        Fp32Modules(frozenset({"linear"})), build_scene(model=model, uses_autocast=True).context
    )

    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 3))
        still_on = torch.is_autocast_enabled("cpu")

    assert still_on


def test_without_autocast_or_fragile_modules_it_is_refused() -> None:
    plain = nn.Sequential(nn.Linear(4, 4))

    assert not carry_out(Fp32Modules(), build_scene(uses_autocast=False).context).applied
    assert not carry_out(Fp32Modules(), build_scene(model=plain).context).applied
