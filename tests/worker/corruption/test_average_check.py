"""Averages that scripts keep of their weights, and what scripts do to them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import swa_utils

from benchmarks.flipped_training import flip_bit
from supervisor.training_state.registry import Registry
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor, heal
from tests.worker.corruption.test_state_check import Training, write

Kept = dict[str, torch.Tensor]


class Averaged(Training):
    """Trains, and keeps an average in one of the ways in which scripts do."""

    def __init__(
        self, way: str, optimizer: str = "AdamW", dtype: torch.dtype | None = None
    ) -> None:
        self.average: nn.Module | None = None
        self.way = way
        super().__init__(optimizer)
        self.tensors = {k: p.detach().clone() for k, p in self.model.named_parameters()}
        if dtype is not None:
            self.tensors = {k: t.to(dtype) for k, t in self.tensors.items()}
        if way == "AveragedModel":
            self.average = swa_utils.AveragedModel(
                self.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.98)
            )
        elif way == "deepcopy":
            self.average = copy.deepcopy(self.model)
        elif way == "swa":
            self.average = swa_utils.AveragedModel(self.model)
        self.keep()

    def held(self) -> Kept:
        if self.average is None:
            return {f"0:main.ema[{name!r}]": tensor for name, tensor in self.tensors.items()}
        return {f"0:main.ema.{name}": p.data for name, p in self._named()}

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        assert self.average is not None
        return list(self.average.named_parameters())

    def keep(self) -> None:
        if not hasattr(self, "tensors"):
            return
        self._shown = getattr(self, "_shown", None) or self.held()  # the same objects each time
        state = self.state.capture(held=self._shown, for_rollback=True)
        self.ring.take(self.step, state, {})
        self.check.checked(state)

    def look(self) -> list[CorruptedTensor]:
        """Heals at once, as the worker does: the next copy may overwrite this one."""
        newest = self.ring.newest()
        assert newest is not None
        found = self.check.compare(newest, self.step)
        heal(found)
        self.keep()
        return found

    def train(self, steps: int = 10, after_clip: Callable[[], object] | None = None) -> None:
        for _ in range(steps):
            super().train(1, after_clip)
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        if isinstance(self.average, swa_utils.AveragedModel):
            self.average.update_parameters(self.model)
            return
        live = dict(self.model.named_parameters())
        for path, tensor in self._shown.items():
            name = next(name for name in live if path.endswith((f".{name}", f"[{name!r}]")))
            tensor.mul_(0.98).add_(live[name], alpha=0.02)

    def first(self) -> torch.Tensor:
        return next(iter(self._shown.values()))


WAYS = ("AveragedModel", "deepcopy", "dict", "swa")


def warm(run: Averaged, looks: int = 4) -> None:
    for _ in range(looks):
        run.train()
        assert run.look() == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "RMSprop"])
def test_what_no_average_can_be_is_found_and_put_back(way: str, optimizer: str) -> None:
    run = Averaged(way, optimizer)
    warm(run)
    run.train(4)
    before = float(run.first().reshape(-1)[5])
    flip_bit(run.first(), 5, 30)
    run.train(3)

    (found,) = run.look()

    assert (found.rule, found.count, found.is_apart) == ("average", 1, True)
    assert float(run.first().reshape(-1)[5]) == pytest.approx(before, abs=0.1)


def test_an_average_that_took_up_a_corrupted_weight_is_healed_with_it() -> None:
    run = Averaged("deepcopy")
    warm(run)
    write(run.weight, 7, 1e9)
    run.train(3)
    run.step += 1  # an update that was left out; the script averages all the same
    run.update()

    found = run.look()

    assert {f.rule for f in found} >= {"moved", "average"}
    assert max(float(t.abs().max()) for t in run.held().values()) < 10.0
    assert run.look() == []


@pytest.mark.parametrize("way", WAYS)
def test_a_young_average_is_not_judged(way: str) -> None:
    run = Averaged(way)
    run.train()
    flip_bit(run.first(), 5, 30)

    assert run.look() == []


def bias_corrected(run: Averaged) -> None:
    """A sum that is divided later is no average."""
    for tensor in run._shown.values():
        tensor.mul_(1.5)


OWN: dict[str, Callable[[Averaged], object]] = {
    "sets one element": lambda run: run.first().view(-1)[3].fill_(1e6),
    "begins anew": lambda run: [t.zero_() for t in run._shown.values()],
    "loads": lambda run: [t.copy_(torch.randn(t.shape) * 1e4) for t in run._shown.values()],
    "loads unseen": lambda run: [t.data.numpy().fill(1e4) for t in run._shown.values()],
    "scales": bias_corrected,
    "averages a second time": lambda run: run.update(),
    "swaps with the weights": lambda run: [
        (p.data.copy_(t), t.copy_(p.data.clone()))
        for p, t in zip(run.model.parameters(), run._shown.values(), strict=True)
    ],
}


@pytest.mark.parametrize("way", ["deepcopy", "dict"])
@pytest.mark.parametrize("kind", OWN)
def test_what_a_script_does_to_its_average_is_no_corruption(way: str, kind: str) -> None:
    run = Averaged(way)
    warm(run)
    for steps in (0, 1, 9):
        run.train(steps)
        OWN[kind](run)
        assert _about_averages(run.look()) == [], (kind, steps)
        run.train(3)
        assert _about_averages(run.look()) == [], (kind, steps)


def _about_averages(found: list[CorruptedTensor]) -> list[CorruptedTensor]:
    return [finding for finding in found if finding.rule == "average"]


def test_an_average_in_bf16_is_none_that_fails() -> None:
    run = Averaged("dict", dtype=torch.bfloat16)

    warm(run, looks=8)


def test_what_is_kept_for_each_weight_but_is_no_average_of_it_may_leap() -> None:
    run = Averaged("dict")
    for tensor in run.first(), *run._shown.values():
        tensor.normal_(std=1e-3)  # such as sums of gradients: smaller than the weights
    run.keep()
    run.update = lambda: [t.mul_(0.9).add_(1e-5) for t in run._shown.values()]  # type: ignore[assignment, method-assign, return-value]
    warm(run)
    flip_bit(run.first(), 5, 30)
    run.train(3)

    assert run.look() == []


def test_a_tensor_of_another_name_is_none() -> None:
    run = Averaged("dict")
    run._shown = {"0:main.memory": torch.randn(32, 16)}
    run.keep()
    run.update = lambda: None  # type: ignore[method-assign]
    warm(run)
    flip_bit(run.first(), 5, 30)
    run.train(1)

    assert run.look() == []
    assert isinstance(run.registry, Registry)
