"""What is called corruption, on real optimizers, and what a script may do to its own state."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.corpus.lion import Lion
from supervisor.settings import SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor, heal, with_flipped_bit
from supervisor.worker.corruption.state_check import StateCheck
from supervisor.worker.corruption.update_watch import UpdateWatch

OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Lion": lambda p: Lion(p, lr=1e-3, weight_decay=0.1),
}


class Training:
    """A model, an optimizer, and looks at them every ten updates."""

    def __init__(self, name: str = "AdamW") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 32), nn.Linear(32, 40))
        self.optimizer = OPTIMIZERS[name](list(self.model.parameters()))
        self.registry = Registry()
        self.registry.add_model(self.model)
        self.registry.add_optimizer(self.optimizer)
        self.state = TrainingState(self.registry)
        self.ring = SnapshotRing(SnapshotSettings())
        self.watch = UpdateWatch(self.registry)
        self.check = StateCheck(self.registry, self.watch)
        self.step = 0
        self.clip: float | None = None
        self.weight = self.model[1].weight
        self.moments = self.optimizer.state[self.weight]
        self.keep()

    def keep(self) -> None:
        state = self.state.capture(for_rollback=True)
        self.ring.take(self.step, state, {})
        self.check.checked(state)

    def look(self) -> list[CorruptedTensor]:
        newest = self.ring.newest()
        assert newest is not None
        found = self.check.compare(newest, self.step)
        self.keep()
        return found

    def train(self, steps: int = 10, after_clip: Callable[[], object] | None = None) -> None:
        for _ in range(steps):
            x = torch.randint(0, 40, (16,))
            nn.functional.cross_entropy(self.model(x), x).backward()
            norm, clips_at = self._norm()
            if after_clip is not None:
                after_clip()
            self.watch.update_begins(self.optimizer, norm, clips_at)
            self.optimizer.step()
            self.watch.update_ended(self.optimizer)
            self.optimizer.zero_grad()
            self.step += 1

    def _norm(self) -> tuple[float, float]:
        parameters = list(self.model.parameters())
        norm = nn.utils.clip_grad_norm_(parameters, self.clip or 1e9)
        if self.clip is not None:
            self.watch.clipped(parameters)
        return float(norm), self.clip or float("inf")


def write(tensor: torch.Tensor, place: int, value: float) -> None:
    """As broken memory does: nobody counts it."""
    ctypes.memmove(tensor.data_ptr() + 4 * place, struct.pack("<f", value), 4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_weight_that_no_update_can_have_made_is_found_and_healed(name: str) -> None:
    run = Training(name)
    run.train()
    assert run.look() == []
    run.train(4)
    before = float(run.weight.detach()[3, 5])
    write(run.weight, 3 * 16 + 5, -3e3)

    (found,) = (f for f in run.look() if f.rule == "moved")

    assert (found.name, found.index(), found.count) == ("model_0.1.weight", (3, 5), 1)
    assert found.worst[0] < -2e3
    heal([found])
    assert abs(float(run.weight.detach()[3, 5]) - before) < 0.5


def test_the_flipped_bit_is_named() -> None:
    run = Training()
    run.train()
    run.look()
    run.train(5)
    value = float(run.weight.detach().view(-1)[9])
    write(run.weight, 9, with_flipped_bit(value, 30, torch.float32))

    (found,) = run.look()

    assert found.worst[2] == 30


@pytest.mark.parametrize(
    ("entry", "value"), [("exp_avg", 3e4), ("exp_avg_sq", -1.0), ("step", 2.0**40)]
)
def test_an_impossible_entry_of_the_optimizer_is_found(entry: str, value: float) -> None:
    run = Training()
    run.train()
    run.look()
    run.train(5)
    write(run.optimizer.state[run.weight][entry], 0, value)

    names = {found.name for found in run.look()}

    assert f"model_0.1.weight {entry}" in names


def test_a_momentum_of_lion_is_found() -> None:
    run = Training("Lion")
    run.train()
    run.look()
    run.train(4)
    write(run.optimizer.state[run.weight]["exp_avg"], 0, 3e4)

    found = run.look()

    assert [(f.name, f.rule) for f in found] == [("model_0.1.weight exp_avg", "memory")]


def test_an_optimizer_that_only_calls_itself_lion_bounds_nothing() -> None:
    OPTIMIZERS["no Lion"] = lambda p: type("Lion", (torch.optim.SGD,), {})(p, lr=0.05, momentum=0.9)
    run = Training("no Lion")
    run.optimizer.param_groups[0]["betas"] = (0.9, 0.99)
    run.train()
    run.look()
    run.train(4)
    write(run.weight, 7, 1e6)

    assert run.look() == []


def test_lion_is_known_from_the_second_look_on() -> None:
    run = Training("Lion")
    run.train(4)
    write(run.weight, 7, 1e6)

    assert [(f.name, f.rule) for f in run.look()] == [("model_0.1.weight", "moved")]


def test_moments_go_back_together() -> None:
    run = Training()
    run.train()
    run.look()
    run.train(3)
    state = run.optimizer.state[run.weight]
    write(state["exp_avg"], 7, 1e5)

    found = run.look()
    heal(found)

    assert run.look() == []
    assert float(state["exp_avg"].view(-1)[7]) < 1.0


def test_a_second_moment_that_shrank_as_a_whole_is_found() -> None:
    run = Training()
    run.train()
    run.look()
    run.train(3)
    for state in run.optimizer.state.values():
        for place in range(state["exp_avg_sq"].numel()):
            write(state["exp_avg_sq"], place, 1e-9 * float(state["exp_avg_sq"].view(-1)[place]))
    run.train(4)

    found = run.look()

    assert {f.rule for f in found} >= {"fell"}


def test_wild_gradients_are_remembered_until_the_next_look() -> None:
    run = Training()
    run.train()
    run.look()
    run.train(5)
    assert not run.watch.saw_wild_gradients()
    run.train(1, after_clip=lambda: None)
    run.watch.update_begins(run.optimizer, 1e4, float("inf"))

    assert run.watch.saw_wild_gradients()


def unseen(run: Training) -> list[torch.Tensor]:
    return [parameter.data for parameter in run.model.parameters()]


def reset_unseen(run: Training) -> None:
    for state in run.optimizer.state.values():
        for value in state.values():
            value.data.zero_()


def load_optimizer(run: Training) -> None:
    state = run.optimizer.state_dict()
    for entries in state["state"].values():
        entries["exp_avg"] = entries["exp_avg"] * 1e6
    run.optimizer.load_state_dict(state)


def swap(run: Training) -> None:
    for parameter in run.model.parameters():
        parameter.data = parameter.data * 100


OWN: dict[str, Callable[[Training], object]] = {
    "clamps": lambda run: [p.clamp_(-0.01, 0.01) for p in unseen(run)],
    "prunes": lambda run: [p.mul_(torch.rand(p.shape) > 0.3) for p in unseen(run)],
    "zeroes a row": lambda run: run.weight.data[3].zero_(),
    "renormalises": lambda run: [p.div_(p.norm()) for p in unseen(run)],
    "loads": lambda run: [p.copy_(torch.randn(p.shape) * 9) for p in unseen(run)],
    "writes through numpy": lambda run: run.weight.detach().numpy().fill(7.0),
    "sets one element": lambda run: run.weight.detach()[0, 0].fill_(1e6),
    "swaps tensors": swap,
    "loads an optimizer": load_optimizer,
    "empties moments": lambda run: run.optimizer.state.clear(),
    "zeroes moments": lambda run: [
        value.zero_() for state in run.optimizer.state.values() for value in state.values()
    ],
    "zeroes moments unseen": reset_unseen,
    "changes the rate": lambda run: run.optimizer.param_groups[0].update(lr=1.0),
    "changes betas": lambda run: run.optimizer.param_groups[0].update(betas=(0.5, 0.7)),
    "adds parameters": lambda run: run.optimizer.add_param_group(
        {"params": [nn.Parameter(torch.randn(20))]}
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_what_a_script_does_to_its_own_state_is_no_corruption(kind: str) -> None:
    run = Training()
    run.train()
    run.look()
    for steps in (0, 1, 9):
        run.train(steps)
        OWN[kind](run)
        run.train(3)
        assert run.look() == [], (kind, steps)
        run.train()
        assert run.look() == [], (kind, steps)


def test_gradients_that_grew_behind_the_clipping_bound_nothing() -> None:
    run = Training("SGD")
    run.clip = 0.1
    run.train()
    run.look()

    def noise() -> None:
        for parameter in run.model.parameters():
            assert parameter.grad is not None
            parameter.grad.view(-1)[0] += 1e5

    run.train(10, after_clip=noise)

    assert run.look() == []


def test_rows_without_a_gradient_and_frozen_weights_are_watched_too() -> None:
    run = Training()
    run.model[2].weight.requires_grad_(False)
    run.train()
    run.look()
    run.train(4)
    write(run.model[2].weight, 11, 1e9)

    assert [found.name for found in run.look()] == ["model_0.2.weight"]


def test_after_a_treatment_nothing_is_claimed_until_the_next_look() -> None:
    run = Training()
    run.train()
    run.watch.begin_anew()
    write(run.weight, 5, 1e9)

    assert run.look() == []


def test_an_update_that_raised_bounds_nothing() -> None:
    run = Training()
    run.train()
    run.look()
    run.watch.failed(run.optimizer)
    write(run.weight, 5, 1e9)
    run.train()

    assert run.look() == []
