from __future__ import annotations

import dataclasses

import pytest
import torch

from supervisor.actions.back_to_start import BackToStart
from supervisor.actions.base import carry_out
from supervisor.actions.batches import SkipData, SmallerBatch
from supervisor.actions.optimizer import ResetOptimizer
from supervisor.actions.requests import Restart, SaveCheckpoint, Stop
from supervisor.actions.rollback import Rollback
from supervisor.training_state.state import digest
from tests.actions.small_context import Scene, build_scene


def with_onset(scene: Scene, onset: int) -> None:
    decision = dataclasses.replace(scene.context.decision, onset_step=onset)
    scene.context.decision = decision


def trained(snapshots_every: int, steps: int) -> Scene:
    scene = build_scene()
    for step in range(steps):
        if step % snapshots_every == 0:
            scene.snapshot()
        scene.train()
    return scene


def test_a_rollback_goes_to_the_newest_snapshot_before_the_onset_and_its_margin() -> None:
    scene = trained(10, 40)
    with_onset(scene, 33)
    wanted = scene.context.snapshots.before(24)
    assert wanted is not None

    result = carry_out(Rollback(), scene.context)

    assert (result.applied, result.to_step) == (True, 20)
    now = scene.context.state.capture()
    for part in ("models", "optimizers"):
        assert digest(now[part]) == digest(wanted.state[part])
    assert scene.calls == [("pipeline", {"step": 20, "held": {}})]
    assert scene.context.snapshots.steps()[-1] == 20
    assert result.fields == {"from_step": 40, "to_step": 20}


def test_a_rollback_zeroes_gradients_that_would_be_added_to() -> None:
    scene = trained(10, 12)
    gradient = scene.model[0].weight.grad
    gradient.fill_(torch.nan)

    carry_out(Rollback(), scene.context)

    assert scene.model[0].weight.grad is gradient
    assert not gradient.any()


def test_a_rollback_passes_over_sick_snapshots() -> None:
    scene = trained(10, 35)
    with_onset(scene, 35)
    newest = scene.context.snapshots.before(26)
    assert newest is not None
    newest.state["models"]["model_0"]["0.weight"][0, 0] = torch.nan

    result = carry_out(Rollback(), scene.context)

    assert (newest.step, result.to_step) == (20, 10)


@pytest.mark.parametrize(
    "broken",
    [
        "supervisor.training_state.model_state.restore_model",
        "supervisor.training_state.optimizer_state.restore_optimizer",
        "supervisor.training_state.optimizer_state._put",
        "supervisor.actions.rollback.zero_gradients",
    ],
)
def test_a_rollback_that_fails_half_way_asks_for_a_restart(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the device is gone")

    scene = trained(10, 40)
    with_onset(scene, 33)
    monkeypatch.setattr(broken, fail)

    result = carry_out(Rollback(), scene.context)

    assert not result.applied
    assert "restarts from its checkpoint" in result.detail
    assert [name for name, _ in scene.calls] == ["restart"]


def test_no_way_back_leaves_a_state_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    action = BackToStart()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the device is gone")

    scene = trained(10, 12)
    monkeypatch.setattr(action, "precondition", lambda context: None)
    monkeypatch.setattr(f"{type(action).__module__}.zero_gradients", fail)

    result = carry_out(action, scene.context)

    assert not result.applied
    assert [name for name, _ in scene.calls] == ["restart"]


def test_gradients_that_are_views_of_one_buffer_do_not_stop_a_rollback() -> None:
    scene = trained(10, 40)
    with_onset(scene, 33)
    flat = torch.ones(sum(p.numel() for p in scene.model.parameters()))
    place = 0
    for parameter in scene.model.parameters():
        parameter.grad = flat[place : place + parameter.numel()].view_as(parameter)
        place += parameter.numel()

    result = carry_out(Rollback(), scene.context)

    assert result.applied
    assert not flat.any()


def test_a_rollback_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    scene = trained(10, 12)
    scene.context.snapshots.oldest().state["optimizers"]["optimizer_0"]["param_groups"] = []
    scene.context.snapshots.newest().state["optimizers"]["optimizer_0"]["param_groups"] = []
    before = digest(scene.context.state.capture())

    result = carry_out(Rollback(), scene.context)

    assert (result.applied, scene.calls) == (False, [])
    assert digest(scene.context.state.capture()) == before


def test_a_rollback_with_only_young_snapshots_takes_the_oldest() -> None:
    scene = trained(5, 12)
    with_onset(scene, 3)

    result = carry_out(Rollback(), scene.context)

    assert result.to_step == 0


def test_a_rollback_without_a_usable_snapshot_is_refused() -> None:
    scene = build_scene()
    nothing = carry_out(Rollback(), scene.context)
    scene.model[0].weight.data.fill_(torch.nan)
    scene.snapshot()

    sick = carry_out(Rollback(), scene.context)

    assert (nothing.applied, sick.applied) == (False, False)
    assert "no snapshot" in nothing.detail
    assert "every snapshot" in sick.detail


def test_a_reset_optimizer_begins_anew() -> None:
    scene = build_scene()
    refused = carry_out(ResetOptimizer(), scene.context)
    scene.train(3)

    result = carry_out(ResetOptimizer(), scene.context)

    assert not refused.applied
    assert result.applied
    assert not scene.optimizer.state
    scene.train()
    assert scene.optimizer.state[scene.model[0].weight]["step"] == 1


def test_restart_stop_and_checkpoint_are_asked_for_with_the_reason() -> None:
    scene = build_scene()

    results = [carry_out(action, scene.context) for action in (SaveCheckpoint(), Restart(), Stop())]

    assert all(result.applied for result in results)
    assert scene.calls == [(name, "loss spike") for name in ("checkpoint", "restart", "stop")]


def test_a_checkpoint_that_fails_says_so() -> None:
    scene = build_scene(save_checkpoint=lambda reason: False)

    assert not carry_out(SaveCheckpoint(), scene.context).applied


def test_as_many_batches_are_skipped_as_the_trouble_lasted() -> None:
    scene = build_scene(step=40)
    with_onset(scene, 31)

    carry_out(SkipData(), scene.context)

    assert scene.calls == [("skip", 10)]
    assert not carry_out(SkipData(), build_scene(skip_batches=None).context).applied


def test_the_batch_is_halved_down_to_a_sixteenth() -> None:
    scene = build_scene(uses_batch_size=True)

    applied = [carry_out(SmallerBatch(), scene.context).applied for _ in range(5)]

    assert applied == [True] * 4 + [False]
    assert scene.context.controls.batch_factor == 1 / 16
    assert not carry_out(SmallerBatch(), build_scene().context).applied


def test_all_ranks_go_back_to_the_newest_snapshot_that_is_finite_on_each() -> None:
    scene = trained(10, 35)
    with_onset(scene, 35)
    asked: list[int] = []

    def tell(step: int) -> list[int]:  # the other rank has a NaN in its newer snapshots
        asked.append(step)
        return [step, min(step, 10)]

    scene.context.tell_ranks = tell

    result = carry_out(Rollback(), scene.context)

    assert result.to_step == 10
    assert asked[:2] == [20, 10]


def test_no_rank_goes_back_where_one_cannot() -> None:
    scene = trained(10, 35)
    with_onset(scene, 35)
    scene.context.tell_ranks = lambda step: [step, -1]

    assert not carry_out(Rollback(), scene.context).applied
