from __future__ import annotations

import pytest
import torch

from supervisor.actions.base import Action, ActionContext, carry_out
from supervisor.actions.clipping import AdaptiveClip, TightenClip
from supervisor.actions.controls import hide_gradients
from supervisor.actions.optimizer import CutLr
from supervisor.actions.requests import SkipUpdate
from supervisor.records import ActionResult
from tests.actions.small_context import build_scene


def test_cuts_multiply_down_to_the_minimum_and_then_are_refused() -> None:
    context = build_scene().context

    results = [carry_out(CutLr(), context) for _ in range(6)]

    assert [result.applied for result in results] == [True] * 5 + [False]
    assert context.controls.lr_factor == context.policy.lr_factor_min
    assert "minimum" in results[-1].detail


def test_a_cut_taken_back_warms_up_again_and_a_new_cut_ends_the_warm_up() -> None:
    context = build_scene().context
    cut = CutLr()
    carry_out(cut, context)

    carry_out(cut, context, undo=True)
    for _ in range(25):
        context.controls.advance()
    halfway = context.controls.lr_factor
    carry_out(cut, context)
    context.controls.advance()

    assert halfway == pytest.approx(0.75)
    assert context.controls.lr_factor == pytest.approx(0.375)


def test_the_scripts_own_clipping_is_tightened() -> None:
    context = build_scene(script_clips=True).context

    carry_out(TightenClip(), context)
    carry_out(TightenClip(), context)

    assert context.controls.max_norm(1.0) == 0.25
    carry_out(TightenClip(), context, undo=True)
    assert context.controls.is_neutral


def test_a_script_without_clipping_gets_the_median_of_its_healthy_norms() -> None:
    norms = [1.0, 2.0, 3.0, 4.0, 1e9, float("nan"), float("inf")]
    context = build_scene(recent_grad_norms=norms).context

    carry_out(TightenClip(), context)

    assert context.controls.max_norm(None) == 3.0


def test_without_norms_there_is_no_threshold() -> None:
    result = carry_out(TightenClip(), build_scene().context)

    assert not result.applied
    assert "too few" in result.detail


def test_adaptive_clipping_starts_from_the_norms_seen() -> None:
    context = build_scene(recent_grad_norms=[5.0] * 200).context

    carry_out(AdaptiveClip(), context)

    assert context.controls.max_norm(None) == 5.0
    assert not carry_out(AdaptiveClip(), context).applied


def test_skipping_is_said_by_the_result() -> None:
    context = build_scene().context

    result = carry_out(SkipUpdate(), context)

    assert result.applied
    assert result.skips_update


@pytest.mark.parametrize(
    "build",
    [
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
        lambda p: torch.optim.AdamW(p, 0.1, fused=True),
        lambda p: torch.optim.RMSprop(p, 0.1),
    ],
)
def test_hidden_gradients_leave_weights_and_state_alone_even_when_nan(build: object) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = build([weight])  # type: ignore[operator]
    weight.grad = torch.ones(3)
    optimizer.step()
    before = weight.detach().clone()
    state = {k: v.clone() for k, v in optimizer.state[weight].items()}
    gradient = torch.full((3,), torch.nan)
    weight.grad = gradient

    give_back = hide_gradients(optimizer)
    optimizer.step()
    give_back()

    assert torch.equal(weight, before)
    assert all(torch.equal(optimizer.state[weight][key], state[key]) for key in state)
    assert weight.grad is gradient
    assert gradient.tolist() == [0.0, 0.0, 0.0]


def test_an_action_that_raises_ends_nothing() -> None:
    class Faulty(Action):
        name = "faulty"

        def apply(self, context: ActionContext) -> ActionResult:
            raise RuntimeError("out of ideas")

    result = carry_out(Faulty(), build_scene().context)

    assert result == ActionResult(
        name="faulty", applied=False, cost_s=result.cost_s, detail="RuntimeError: out of ideas"
    )
