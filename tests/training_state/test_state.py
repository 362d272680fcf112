from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from supervisor.errors import CheckpointError
from supervisor.training_state.optimizer_state import capture_optimizer, restore_optimizer
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import copy_state
from supervisor.training_state.state import (
    ROLLBACK_PARTS,
    TrainingState,
    digest,
    is_finite,
    read_state,
    write_state,
)
from tests.training_state.small_runs import OptimizerFactory, Run, SmallModel, build_run


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


OPTIMIZERS: dict[str, OptimizerFactory] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "sgd momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adam": adam,
    "adam amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "adam tensor lr": lambda p: torch.optim.Adam(p, torch.tensor(1e-2)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3, history_size=4),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: schedules.StepLR(o, 3, 0.5),
    "multi step": lambda o: schedules.MultiStepLR(o, [4, 8]),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 20),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=50),
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step)),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1),
    "sequential": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o), schedules.ExponentialLR(o, 0.9)], [3]
    ),
}


def continued_from_disk(build: Callable[[], Run], folder: Path) -> tuple[str, str]:
    """Returns the digests at the end of an undisturbed run and of one resumed at step 5."""
    run = build()
    run.train(5)
    write_state(folder, run.state.capture())
    run.train(7)

    resumed = build()
    resumed.state.restore(read_state(folder))
    resumed.train(7)
    return digest(run.state.capture()), digest(resumed.state.capture())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_continues_to_the_bit_from_disk(name: str, tmp_path: Path) -> None:
    undisturbed, resumed = continued_from_disk(lambda: build_run(OPTIMIZERS[name]), tmp_path)

    assert resumed == undisturbed


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_continue_from_disk(name: str, tmp_path: Path) -> None:
    undisturbed, resumed = continued_from_disk(lambda: build_run(adam, SCHEDULES[name]), tmp_path)

    assert resumed == undisturbed


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rollback_in_place_restores_weights_and_optimizer(name: str) -> None:
    run = build_run(OPTIMIZERS[name])
    run.train(3)
    saved = copy_state(run.state.capture())
    run.train(4)

    run.state.restore(saved, ROLLBACK_PARTS)

    now = run.state.capture()
    assert digest({k: now[k] for k in ("models", "optimizers")}) == digest(
        {k: saved[k] for k in ("models", "optimizers")}
    )


def test_restored_tensors_are_the_same_objects() -> None:
    run = build_run(adam)
    run.train(2)
    saved = copy_state(run.state.capture())
    parameter = next(run.model.parameters())
    momentum = run.optimizer.state[parameter]["exp_avg"]
    address = parameter.data_ptr()
    run.train(2)

    run.state.restore(saved)

    assert parameter.data_ptr() == address
    assert run.optimizer.state[parameter]["exp_avg"] is momentum
    assert torch.equal(momentum, saved["optimizers"]["optimizer_0"]["state"][0]["exp_avg"])


def test_state_that_did_not_exist_is_removed() -> None:
    run = build_run(adam)
    saved = copy_state(run.state.capture())
    run.train(2)

    run.state.restore(saved)

    assert len(run.optimizer.state) == 0


def test_a_rollback_leaves_rate_schedule_counters_modes_and_random_numbers_alone() -> None:
    run = build_run(adam, lambda o: schedules.ExponentialLR(o, 0.5))
    run.train(1)
    saved = copy_state(run.state.capture())
    run.train(2)
    run.model.eval()
    rng = torch.get_rng_state()

    run.state.restore(saved, ROLLBACK_PARTS)

    assert run.optimizer.param_groups[0]["lr"] == 1e-2 * 0.5**3
    assert run.scheduler.last_epoch == 3
    assert run.model.calls == 3
    assert not run.model.training
    assert torch.equal(torch.get_rng_state(), rng)


def test_requires_grad_is_never_touched() -> None:
    run = build_run(adam)
    saved = copy_state(run.state.capture())
    run.model.first.weight.requires_grad_(False)

    run.state.restore(saved)

    assert not run.model.first.weight.requires_grad


def test_restoring_inside_inference_mode_gives_ordinary_optimizer_state() -> None:
    run = build_run(adam)
    run.train(2)
    saved = copy_state(run.state.capture())
    fresh = build_run(adam)

    with torch.inference_mode():
        fresh.state.restore(saved)

    assert not any(s["exp_avg"].is_inference() for s in fresh.optimizer.state.values())
    fresh.train(1)


def test_a_graph_that_is_still_alive_survives_a_restore() -> None:
    run = build_run(adam)
    saved = copy_state(run.state.capture())
    loss = run.model(torch.randn(8, 4)).sum()

    run.state.restore(saved, ROLLBACK_PARTS)

    loss.backward()
    assert run.model.first.weight.grad is not None


def test_two_optimizers_of_a_gan_are_both_restored(tmp_path: Path) -> None:
    def build() -> tuple[TrainingState, Callable[[], None]]:
        torch.manual_seed(1)
        generator, critic = nn.Linear(3, 2), nn.Linear(2, 1)
        steppers = [torch.optim.Adam(m.parameters(), 0.01) for m in (generator, critic)]
        registry = Registry()
        for thing in (generator, critic):
            registry.add_model(thing)
        for stepper in steppers:
            registry.add_optimizer(stepper)

        def step() -> None:
            for stepper, sign in zip(steppers, (1, -1), strict=True):
                stepper.zero_grad()
                (sign * critic(generator(torch.randn(4, 3))).tanh().mean()).backward()
                stepper.step()

        return TrainingState(registry), step

    state, step = build()
    step()
    write_state(tmp_path, state.capture())
    step()
    resumed, step_resumed = build()

    resumed.restore(read_state(tmp_path))
    step_resumed()

    assert digest(resumed.capture()) == digest(state.capture())


def test_parameters_outside_all_models_are_saved_with_their_optimizer() -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    registry = Registry()
    registry.add_optimizer(optimizer)
    state = TrainingState(registry)
    saved = copy_state(state.capture())
    weight.data += 1

    state.restore(saved)

    assert weight.tolist() == [0.0, 0.0, 0.0]


def test_a_scaler_continues_from_disk(tmp_path: Path) -> None:
    def build() -> tuple[Run, torch.amp.GradScaler]:
        run = build_run(adam)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        run.registry.add_scaler(scaler)
        return run, scaler

    def train(run: Run, scaler: torch.amp.GradScaler) -> None:
        for _ in range(3):
            run.optimizer.zero_grad()
            scaler.scale(run.model(torch.randn(8, 4)).square().mean()).backward()
            scaler.step(run.optimizer)
            scaler.update()

    run, scaler = build()
    train(run, scaler)
    write_state(tmp_path, run.state.capture())
    train(run, scaler)
    resumed, its_scaler = build()

    resumed.state.restore(read_state(tmp_path))
    train(resumed, its_scaler)

    assert its_scaler.get_scale() == scaler.get_scale() == 64.0
    assert digest(resumed.state.capture()) == digest(run.state.capture())


def test_a_scaler_that_was_not_used_yet_is_unused_again() -> None:
    run = build_run(adam)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    run.registry.add_scaler(scaler)
    saved = copy_state(run.state.capture())
    scaler.scale(torch.ones(()))

    run.state.restore(saved)

    assert scaler._scale is None


def test_an_average_of_the_weights_is_restored_when_tracked(tmp_path: Path) -> None:
    run = build_run(adam)
    average = torch.optim.swa_utils.AveragedModel(run.model)
    run.registry.track("ema", average)
    run.train(2)
    average.update_parameters(run.model)
    saved = copy_state(run.state.capture())
    run.train(2)
    average.update_parameters(run.model)

    run.state.restore(saved)

    assert digest(run.state.capture()) == digest(saved)
    assert average.n_averaged.item() == 1


def test_a_state_dict_that_fails_is_named_and_the_rest_is_saved() -> None:
    class Broken:
        def state_dict(self) -> dict[str, Any]:
            raise ValueError("not now")

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    run = build_run(adam)
    broken = Broken()
    run.registry.track("meter", broken)

    saved = run.state.capture()
    run.state.restore(saved)

    assert saved["left_out"] == ["meter: state_dict() raised ValueError: not now"]


def test_another_shape_is_refused_by_name_before_anything_is_changed() -> None:
    run = build_run(adam)
    other = build_run(adam, model=nn.Sequential(nn.Linear(2, 2)))
    wider = build_run(adam, model=nn.Sequential(nn.Linear(2, 3)))
    before = digest(other.state.capture()["models"])

    with pytest.raises(CheckpointError, match=r"model_0\.0\.bias: not in the checkpoint"):
        other.state.restore(run.state.capture(), ROLLBACK_PARTS)
    with pytest.raises(CheckpointError, match=r"model_0\.0\.weight: shape \(3, 2\)"):
        other.state.restore(wider.state.capture())

    assert digest(other.state.capture()["models"]) == before


def test_a_missing_optimizer_is_refused_by_name() -> None:
    run = build_run(adam)
    saved = copy_state(run.state.capture())
    second = torch.optim.SGD(run.model.parameters(), 0.1)
    run.registry.add_optimizer(second)

    with pytest.raises(CheckpointError, match="optimizer_1: this optimizer is only in the script"):
        run.state.restore(saved)


def test_a_buffer_that_grew_is_replaced() -> None:
    run = build_run(adam)
    saved = copy_state(run.state.capture())
    run.model.mask = torch.zeros(5)

    run.state.restore(saved)

    assert run.model.mask.tolist() == [0.0, -torch.inf]


def test_the_digest_sees_every_bit_and_dtype() -> None:
    run = build_run(adam)
    before = digest(run.state.capture())
    run.model.norm.running_mean.view(torch.int32)[3] ^= 1

    after = digest(run.state.capture())

    assert after != before
    assert digest({"a": torch.zeros(2)}) != digest({"a": torch.zeros(2, dtype=torch.int32)})


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.int64]
)
def test_the_digest_reads_every_dtype(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 2).to(dtype)

    assert digest({"a": tensor.t()}) == digest({"a": tensor.t().clone()})


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_weight_is_found_by_name_and_an_infinite_mask_is_not(bad: float) -> None:
    run = build_run(adam)
    run.train(1)
    assert is_finite(run.state.capture()) == (True, "")

    run.model.last.bias.data[2] = bad

    assert is_finite(run.state.capture()) == (False, "model_0.last.bias")


def test_bad_optimizer_state_is_found() -> None:
    run = build_run(adam)
    run.train(1)
    run.optimizer.state[run.model.first.bias]["exp_avg"][0] = torch.nan

    finite, name = is_finite(run.state.capture())

    assert not finite
    assert name == "optimizer_0.state.1.exp_avg"


def test_gradients_are_captured_on_request() -> None:
    run = build_run(adam)
    run.model(torch.randn(8, 4)).sum().backward()

    saved = run.state.capture(include_grads=True)

    assert torch.equal(saved["grads"]["optimizer_0"][0], run.model.first.weight.grad)


def test_gradients_that_the_script_accumulates_come_back() -> None:
    run = build_run(adam)
    run.model(torch.randn(8, 4)).sum().backward()
    run.model.first.bias.grad = None
    saved = copy_state(run.state.capture(include_grads=True))
    kept = run.model.first.weight.grad
    run.model(torch.randn(8, 4)).sum().backward()
    fresh = build_run(adam)

    for one in (run, fresh):
        one.state.restore(saved)

    assert run.model.first.weight.grad is kept
    for one in (run, fresh):
        assert torch.equal(one.model.first.weight.grad, saved["grads"]["optimizer_0"][0])
        assert one.model.first.bias.grad is None


def test_half_precision_state_follows_a_model_that_is_fp32_now() -> None:
    half = build_run(adam, model=SmallModel().bfloat16())
    for parameter in half.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    half.optimizer.step()
    full = build_run(adam)

    full.state.restore(copy_state(half.state.capture()), ROLLBACK_PARTS)

    assert {s["exp_avg"].dtype for s in full.optimizer.state.values()} == {torch.float32}
    full.train(1)


def test_the_state_of_parameters_comes_back_in_the_order_in_which_it_was_made() -> None:
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.SGD([first, second], 0.1, momentum=0.9)
    for parameter in (second, first):  # a layer that was left out at first
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
    registry = Registry()
    registry.add_optimizer(optimizer)
    state = TrainingState(registry)
    saved = copy_state(state.capture())

    optimizer.state.clear()
    state.restore(saved)

    assert [parameter is second for parameter in optimizer.state] == [True, False]


def test_groups_keep_the_pair_that_they_share_where_it_is_equal() -> None:
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.Adam([{"params": [w]} for w in weights], betas=(0.9, 0.99))
    saved = copy.deepcopy(capture_optimizer(optimizer, "optimizer", [], set()))
    optimizer.param_groups[1]["lr"] = 5.0

    restore_optimizer(optimizer, saved, groups=True)

    assert optimizer.param_groups[0]["betas"] is optimizer.param_groups[1]["betas"]
    assert optimizer.param_groups[1]["lr"] == 1e-3


def test_what_an_optimizer_keeps_for_a_weight_comes_back_in_its_order() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    optimizer.state[weight] = {"late": [None], "first": torch.ones(2)}
    saved = copy.deepcopy(capture_optimizer(optimizer, "optimizer", [], set()))
    optimizer.state[weight] = {"first": torch.zeros(2)}

    restore_optimizer(optimizer, saved, groups=True)

    assert list(optimizer.state[weight]) == ["late", "first"]
    assert torch.equal(optimizer.state[weight]["first"], torch.ones(2))
