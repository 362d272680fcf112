from __future__ import annotations

import pytest
import torch
from torch import nn

from supervisor.actions.base import carry_out
from supervisor.actions.fp32 import Fp32Fallback
from supervisor.actions.rollback import Rollback
from tests.actions.small_context import Scene, build_scene


class Casting(nn.Module):
    """Casts inside, as half-precision models of the wild do; has a tied weight and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x)).to(torch.bfloat16)
        return self.last(hidden)


def half_scene(dtype: torch.dtype = torch.bfloat16) -> Scene:
    return build_scene(model=Casting().to(dtype))


def dtypes(scene: Scene) -> set[torch.dtype]:
    found = {p.dtype for p in scene.model.parameters()}
    for entries in scene.optimizer.state.values():
        found |= {v.dtype for k, v in entries.items() if k != "step"}
    return found


def test_autocast_and_scaler_are_the_workers_business() -> None:
    scene = build_scene(uses_autocast=True)

    result = carry_out(Fp32Fallback(), scene.context)

    assert result.applied
    assert scene.context.controls.fp32
    assert not carry_out(Fp32Fallback(), scene.context).applied


def test_a_run_in_fp32_has_nothing_to_fall_back_to() -> None:
    result = carry_out(Fp32Fallback(), build_scene(uses_autocast=False).context)

    assert result.detail == "the run already computes in FP32"


def test_a_half_precision_model_trains_on_in_fp32_and_back() -> None:
    scene, fallback = half_scene(), Fp32Fallback()
    scene.train(3, torch.bfloat16)
    parameters = list(scene.model.parameters())
    momentum = scene.optimizer.state[parameters[0]]["exp_avg"].float()

    carry_out(fallback, scene.context)
    kept = torch.equal(scene.optimizer.state[parameters[0]]["exp_avg"], momentum)
    scene.train(3, torch.bfloat16)
    in_fp32 = dtypes(scene)
    carry_out(fallback, scene.context, undo=True)
    scene.train(3, torch.bfloat16)

    assert kept
    assert in_fp32 == {torch.float32}
    assert dtypes(scene) == {torch.bfloat16}
    assert all(a is b for a, b in zip(parameters, scene.model.parameters(), strict=True))
    assert scene.model.last.weight is scene.model.first.weight
    assert scene.model.norm.running_mean.dtype == torch.bfloat16


def test_applied_and_taken_back_at_once_leaves_no_trace() -> None:
    scene, twin, fallback = half_scene(), half_scene(), Fp32Fallback()
    twin.model.load_state_dict(scene.model.state_dict())
    for one in (scene, twin):
        torch.manual_seed(5)
        one.train(2, torch.bfloat16)
    carry_out(fallback, scene.context)
    carry_out(fallback, scene.context, undo=True)

    for one in (scene, twin):
        torch.manual_seed(6)
        one.train(2, torch.bfloat16)

    for mine, other in zip(scene.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_new_process_under_the_fallback_converts_its_half_precision_model() -> None:
    scene = half_scene()
    scene.context.controls.fp32 = True

    result = carry_out(Fp32Fallback(), scene.context)

    assert result.fields["converted"] == ["model_0"]
    assert dtypes(scene) == {torch.float32}


@pytest.mark.parametrize("before", [True, False])
def test_a_rollback_and_the_fallback_go_together_in_either_order(before: bool) -> None:
    scene, fallback = half_scene(), Fp32Fallback()
    scene.train(2, torch.bfloat16)
    scene.snapshot()
    scene.train(2, torch.bfloat16)

    for action in (fallback, Rollback()) if before else (Rollback(), fallback):
        assert carry_out(action, scene.context).applied
    scene.train(2, torch.bfloat16)

    assert dtypes(scene) == {torch.float32}


def test_a_snapshot_in_fp32_goes_back_into_a_half_precision_model() -> None:
    scene, fallback = half_scene(), Fp32Fallback()
    carry_out(fallback, scene.context)
    scene.train(2, torch.bfloat16)
    scene.snapshot()
    carry_out(fallback, scene.context, undo=True)

    carry_out(Rollback(), scene.context)
    scene.train(1, torch.bfloat16)

    assert dtypes(scene) == {torch.bfloat16}
