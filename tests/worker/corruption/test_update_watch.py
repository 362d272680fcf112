"""What is kept of the updates since the last look."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.corpus.lion import Lion
from supervisor.training_state.registry import Registry
from supervisor.worker.corruption.adaptive_families import ForeignAdam
from supervisor.worker.corruption.families import Lion as LionFamily
from supervisor.worker.corruption.update_watch import ENOUGH, ForeignOptimizer, UpdateWatch


def test_updates_of_the_same_settings_in_a_row_share_them() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    registry = Registry()
    registry.add_optimizer(optimizer)
    watch = UpdateWatch(registry)
    watch.checked()
    first, second = 0.1, 0.2

    for rate in (first, first, second, first):
        optimizer.param_groups[0]["lr"] = rate
        watch.update_begins(optimizer, 1.0, float("inf"))
        watch.update_ended(optimizer)

    (watched,) = watch.watched()
    updates = watched.updates(0)
    assert [update.number("lr") for update in updates] == [0.1, 0.1, 0.2, 0.1]
    assert updates[0].settings is updates[1].settings
    assert len({id(update.settings) for update in updates}) == 3


def test_nothing_is_kept_of_a_dropped_optimizer_for_the_next_one_at_its_address() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    registry = Registry()
    watch = UpdateWatch(registry)
    dropped = torch.optim.RMSprop([weight], lr=0.1)
    registry.add_optimizer(dropped)
    watch.checked()
    assert len(watch.watched()) == 1

    del dropped
    gc.collect()

    assert watch.watched() == []
    optimizer = torch.optim.Adam([weight], lr=0.1)  # at its address there is no `alpha`
    watch.update_begins(optimizer, 1.0, float("inf"))


class OtherAdamW(torch.optim.Optimizer):
    """Written anew, with epsilon at another place, as some packages have it."""

    def __init__(self, parameters: Any, **settings: Any) -> None:
        defaults = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
        super().__init__(parameters, {**defaults, **settings})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.move(p, group, self.state[p])

    def move(self, p: torch.Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        state["step"] += 1
        assert p.grad is not None
        one, two = group["betas"]
        state["exp_avg"].mul_(one).add_(p.grad, alpha=1 - one)
        state["exp_avg_sq"].mul_(two).addcmul_(p.grad, p.grad, value=1 - two)
        root = state["exp_avg_sq"].sqrt().add_(group["eps"])
        size = group["lr"] * (1 - two ** state["step"]) ** 0.5 / (1 - one ** state["step"])
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.addcdiv_(state["exp_avg"], root, value=-size * self.factor(p))

    def factor(self, p: torch.Tensor) -> float:
        return 1.0


class Trusting(OtherAdamW):
    """As LAMB: each tensor has a rate of its own."""

    def factor(self, p: torch.Tensor) -> float:
        return float(p.norm())


class NewerLion(Lion):
    """Calls itself so, and scales its signs."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        before = [p.clone() for p in self.param_groups[0]["params"]]
        super().step()
        for p, old in zip(self.param_groups[0]["params"], before, strict=True):
            p.add_(p - old, alpha=0.7)


class LionWithoutDecay(Lion):
    """Has a decay that does not depend on the rate."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        super().step()
        for p in self.param_groups[0]["params"]:
            p.mul_(1 - 0.01)


def watched(
    make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype, updates: int = 3
) -> ForeignOptimizer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).to(dtype)
    optimizer = make(model.parameters())
    foreign = ForeignOptimizer(optimizer)
    for step in range(updates + 2):
        optimizer.zero_grad()
        model(torch.randn(16, 16, dtype=dtype)).float().square().mean().backward()
        if step >= 2:
            foreign.update_begins(optimizer)
        optimizer.step()
        if step >= 2:
            foreign.update_ended(optimizer)
    return foreign


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lion_is_proved_by_one_update(dtype: torch.dtype) -> None:
    foreign = watched(lambda p: Lion(p, lr=2e-3, weight_decay=0.1), dtype, updates=1)

    assert isinstance(foreign.family, LionFamily)
    assert foreign.is_proved


@pytest.mark.parametrize("make", [OtherAdamW, lambda p: OtherAdamW(p, weight_decay=0.0)])
def test_adam_of_another_package_is_proved_by_its_updates(make: Any) -> None:
    foreign = watched(make, torch.float32)

    assert isinstance(foreign.family, ForeignAdam)
    assert foreign.is_proved


def test_a_class_derived_from_adam_with_l2_decay_is_proved_too() -> None:
    class Derived(torch.optim.Adam):
        pass

    assert watched(lambda p: Derived(p, weight_decay=0.1), torch.float32).is_proved


@pytest.mark.parametrize(
    "make",
    [
        Trusting,
        lambda p: NewerLion(p, lr=1e-3),
        lambda p: LionWithoutDecay(p, lr=1e-3),
        type("MyRAdam", (torch.optim.RAdam,), {}),
        type("MyNAdam", (torch.optim.NAdam,), {}),
        torch.optim.ASGD,
    ],
    ids=["LAMB", "scaled", "own decay", "RAdam", "NAdam", "no candidate"],
)
def test_another_algebra_is_refuted(make: Any) -> None:
    foreign = watched(make, torch.float32)

    assert foreign.family is None
    assert not foreign.is_proved


def test_a_rate_that_rounding_swallows_proves_nothing() -> None:
    foreign = watched(lambda p: Lion(p, lr=1e-7), torch.bfloat16)

    assert not foreign.is_proved


def test_one_update_that_is_another_ends_the_proof() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4 * ENOUGH))
    optimizer = Lion([weight], lr=1e-2)
    foreign = ForeignOptimizer(optimizer)
    proved = []
    for step in range(4):
        weight.grad = torch.randn_like(weight)
        foreign.update_begins(optimizer)
        optimizer.step()
        if step == 2:
            weight.data[7] += 0.003
        foreign.update_ended(optimizer)
        proved.append(foreign.is_proved)

    assert proved == [True, True, False, False]
