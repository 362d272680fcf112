"""Running means and variances, and what scripts do to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.flipped_training import flip_bit
from supervisor.settings import SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.core.call_state import CallState
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor, heal
from supervisor.worker.corruption.patches_normalisation import watch_normalisation
from supervisor.worker.corruption.state_check import StateCheck
from supervisor.worker.corruption.update_watch import UpdateWatch

watched = pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="this torch does not tell whether someone packs what autograd keeps",
)


class AlwaysOn:
    """As a part of the breakers, but errors fail the test."""

    is_on = True

    def caught(self, error: Exception) -> None:
        raise error


class Training:
    """Forwards of a model with normalisation, and looks at it."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(24)
        self.model = nn.Sequential(nn.Linear(4, 24), self.norm, nn.ReLU()).to(dtype)
        self.dtype = dtype
        self.mean, self.variance = self.norm.running_mean, self.norm.running_var
        registry = Registry()
        registry.add_model(self.model)
        self.watch = UpdateWatch(registry)
        self.check = StateCheck(registry, self.watch)
        self.state = TrainingState(registry)
        self.ring = SnapshotRing(SnapshotSettings())
        self.step = 0
        self.scale = 1.0
        self.held: dict[str, torch.Tensor] = {}

    def train(self, steps: int = 10) -> None:
        for _ in range(steps):
            self.forward()
            self.step += 1

    def forward(self) -> torch.Tensor:
        x = (torch.randn(32, 4) * self.scale).to(self.dtype)
        return self.model(x)

    def keep(self) -> None:
        state = self.state.capture(held=self.held, for_rollback=True)
        self.ring.take(self.step, state, {})
        self.check.checked(state)

    def look(self) -> list[CorruptedTensor]:
        newest = self.ring.newest()
        assert newest is not None
        found = self.check.compare(newest, self.step)
        heal(found)  # at once, as the worker does: the next copy may overwrite this one
        self.keep()
        return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Training:
    return begin(monkeypatch)


def begin(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype = torch.float32, warm: int = 12
) -> Training:
    original = nn.functional.batch_norm
    monkeypatch.setattr(nn.functional, "batch_norm", original)  # so that it is put back
    run, call_state = Training(dtype), CallState()
    call_state.active = True
    watch_normalisation(call_state, run.watch.normalisation, AlwaysOn())  # type: ignore[arg-type]
    run.train(warm)
    run.keep()
    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_of_all_kinds_are_no_corruption(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    run = begin(monkeypatch, dtype)

    for scale in (1.0, 1e-6, 1.0, 1e5, 1e-3, 0.0, 30.0):
        run.scale = scale
        for steps in (1, 3, 40):
            run.train(steps)
            assert run.look() == []


@watched
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("which", ["mean", "variance"])
def test_what_no_batch_can_have_made_is_found_and_becomes_what_it_would_have_been(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, before: int, which: str
) -> None:
    run = begin(monkeypatch, dtype)
    tensor = run.mean if which == "mean" else run.variance
    assert tensor is not None
    run.train(before)
    undisturbed = tensor.clone()
    flip_bit(tensor, 7, 30 if dtype is torch.float32 else 14)

    (found,) = run.look()

    assert found.name == f"model_0.1.{'running_mean' if which == 'mean' else 'running_var'}"
    assert (found.rule, found.index(), found.count) == ("statistic", (7,), 1)
    tolerance = 1e-5 if dtype is torch.float32 else 0.1
    torch.testing.assert_close(tensor, undisturbed, rtol=tolerance, atol=1e-6 + tolerance / 10)


@watched
@pytest.mark.parametrize("value", [-3.0, float("nan"), float("inf"), 1e-30])
def test_an_impossible_variance_is_found_after_further_batches(run: Training, value: float) -> None:
    assert run.variance is not None
    run.train(3)
    run.variance.detach().numpy()[3] = value
    run.train(2)

    assert [found.index() for found in run.look()] == [(3,)]


def unseen_zero(run: Training) -> None:
    """As pruning of channels does it."""
    for tensor in (run.mean, run.variance, run.norm.weight):
        assert tensor is not None
        tensor.data.numpy()[2] = 0.0


def unseen_reset(run: Training) -> None:
    """As reviving a channel does it."""
    assert run.mean is not None
    assert run.variance is not None
    run.mean.data.numpy()[2], run.variance.data.numpy()[2] = 0.0, 1.0


def in_checkpoint(run: Training) -> None:
    x = torch.randn(32, 4, requires_grad=True)
    for reentrant in (False, True):
        checkpoint(run.model, x, use_reentrant=reentrant).sum().backward()


def scripted(run: Training) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(run.model)(torch.randn(32, 4) * 100)


def compiled(run: Training) -> None:
    torch.compile(run.model, backend="eager")(torch.randn(32, 4) * 100)
    torch._dynamo.utils.counters.clear()  # other tests ask whether anything was compiled


def evaluated(run: Training) -> None:
    run.model.eval()
    run.forward()
    run.model.train()


def without_gradients(run: Training) -> None:
    with torch.no_grad():
        for _ in range(3):
            run.model(torch.randn(32, 4) * 1e4)  # statistics are estimated anew


def with_nan(run: Training) -> None:
    run.model(torch.full((32, 4), float("nan")))


def other_momentum(run: Training) -> None:
    run.norm.momentum = None
    run.scale = 100.0


OWN: dict[str, Callable[[Training], object]] = {
    "begins anew": lambda run: run.norm.reset_running_stats(),
    "loads": lambda run: run.model.load_state_dict(
        {name: tensor * 1e5 for name, tensor in run.model.state_dict().items()}
    ),
    "writes one element": lambda run: run.norm.running_mean[0].fill_(1e9),
    "writes all unseen": lambda run: run.norm.running_mean.data.numpy().fill(1e9),
    "zeroes a channel unseen": unseen_zero,
    "revives a channel unseen": unseen_reset,
    "replaces a buffer": lambda run: setattr(run.norm, "running_mean", torch.full((24,), 1e9)),
    "checkpoints activations": in_checkpoint,
    "scripts": scripted,
    "compiles": compiled,
    "evaluates": evaluated,
    "estimates without gradients": without_gradients,
    "sees NaN": with_nan,
    "changes the momentum": other_momentum,
    "freezes": lambda run: setattr(run.norm, "track_running_stats", False),
    "averages": lambda run: run.norm.running_var.lerp_(torch.full((24,), 1e9), 0.5),
}


@pytest.mark.parametrize("kind", OWN)
def test_what_a_script_does_is_no_corruption(run: Training, kind: str) -> None:
    for steps in (0, 1, 9):
        run.train(steps)
        OWN[kind](run)
        assert run.look() == [], (kind, steps)
        run.train(3)
        assert run.look() == [], (kind, steps)


def test_after_a_treatment_nothing_is_claimed_until_the_next_look(run: Training) -> None:
    assert run.mean is not None
    run.watch.begin_anew()
    run.train(3)
    flip_bit(run.mean, 7, 30)

    assert run.look() == []


@watched
def test_an_average_of_running_values_is_healed_with_them(run: Training) -> None:
    assert run.mean is not None
    average = run.mean.clone()
    run.held = {"0:main.ema.module.1.running_mean": average}

    def train() -> None:
        for _ in range(5):
            run.train(1)
            average.lerp_(run.norm.running_mean, 0.02)  # type: ignore[arg-type]

    run.keep()
    for _ in range(3):
        train()
        assert run.look() == []
    flip_bit(run.mean, 7, 30)
    train()

    found = run.look()

    assert {f.rule for f in found} == {"statistic", "average"}
    assert float(average.abs().max()) < 10.0


@watched
def test_a_training_with_too_many_normalisations_a_millisecond_is_not_watched(
    run: Training,
) -> None:
    run.train(10)

    assert 0.0 < run.watch.normalisation.keep_to_budget(10, usual_s=0.05) < 0.003
    assert run.watch.normalisation.is_on
    assert run.watch.normalisation.keep_to_budget(10, usual_s=0.0005) > 0.003
    assert not run.watch.normalisation.is_on
    run.train(3)
    assert run.watch.normalisation.known() == []
