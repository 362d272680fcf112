"""Looking for mistakes calls nothing of the script's, leaves nothing behind, and takes an update
that was left out for no evidence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.hooked_script import HookedScript as Hooked
from supervisor.testing.mistake_check import check_mistake
from supervisor.worker.mistakes.evidence.loss_graph import LossGraph, saved
from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.kinds.gradients import NeverGraded

LENGTH, VOCABULARY = 12, 20


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.out = nn.Linear(24, VOCABULARY)
        self.drop = nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.out(self.drop(self.rnn(self.embed(tokens))[0]))


def copying(around: Callable[[], Any], steps: int = 25) -> tuple[Hooked, nn.Module]:
    """Trains a model on its own input, with something of the script's around each step."""
    torch.manual_seed(0)
    run = Hooked()
    with run.patched():
        model = LanguageModel()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(steps):
            tokens = torch.randint(VOCABULARY, (4, LENGTH))
            with around():
                logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert run.errors == []
    return run, model


def test_saved_tensors_are_not_unpacked_by_the_scripts_hooks() -> None:
    unpacked = []

    def unpack(value: torch.Tensor) -> torch.Tensor:
        unpacked.append(value.shape)
        return value

    def around() -> Any:
        return torch.autograd.graph.saved_tensors_hooks(lambda value: value, unpack)

    torch.manual_seed(0)
    model, tokens = LanguageModel(), torch.randint(VOCABULARY, (4, LENGTH))
    with around():
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    graph = LossGraph([loss])

    (node,) = graph.named("NllLoss")

    assert saved(node, "target") is None
    assert graph.has_users_code()
    assert unpacked == []


def test_a_checkpoint_computes_again_once_and_not_for_us() -> None:
    calls = []

    def body(model: nn.Module, tokens: torch.Tensor) -> Any:
        calls.append(1)
        return model(tokens)

    torch.manual_seed(0)
    run = Hooked()
    with run.patched():
        model = LanguageModel()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(25):
            tokens = torch.randint(VOCABULARY, (4, LENGTH))
            logits = checkpoint(body, model, tokens, use_reentrant=False)
            optimizer.zero_grad()
            functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()

    assert run.errors == []
    assert len(calls) == 50


@pytest.mark.parametrize("way", ["register_hook", "retain_grad"])
def test_no_hook_at_a_tensor_is_called_for_us(way: str) -> None:
    gradients: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []

    class Telling(LanguageModel):
        def forward(self, tokens: torch.Tensor) -> Any:
            hidden = self.rnn(self.embed(tokens))[0]
            if way == "register_hook":
                hidden.register_hook(gradients.append)
            else:
                hidden.retain_grad()
                kept.append(hidden)
            return self.out(hidden)

    def train(run: Hooked) -> None:
        torch.manual_seed(0)
        model = Telling()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(25):
            tokens = torch.randint(VOCABULARY, (4, LENGTH))
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()

    found = []
    for is_enabled in (False, True):
        run = Hooked(is_enabled=is_enabled)
        gradients.clear()
        kept.clear()
        with run.patched():
            train(run)
        assert run.errors == []
        found.append([*gradients, *(each.grad for each in kept if each.grad is not None)])

    assert [len(each) for each in found] == [25, 25]
    assert all(map(torch.equal, *found))


def test_without_hooks_the_copy_is_told_with_one_backward_that_changes_nothing() -> None:
    run, model = copying(contextlib.nullcontext)

    assert [alert.kind for alert in run.alerts] == ["targets_are_the_input"]
    assert all(parameter.grad is not None for parameter in model.parameters())


class Frozen(nn.Module):
    def __init__(self, *, fails_at: int = -1) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        self.calls, self.fails_at = 0, fails_at
        self.hooks_seen: list[int] = []

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        with torch.no_grad():
            x = self.body(x)
        self.hooks_seen.append(len(self.body._forward_pre_hooks))
        if self.calls == self.fails_at:
            raise ValueError("a batch that the script leaves out")
        return self.head(x)


@pytest.mark.parametrize("fails_at", [-1, 5])
def test_no_hook_stays_at_a_module_also_where_its_forward_fails(fails_at: int) -> None:
    torch.manual_seed(0)
    run = Hooked()
    with run.patched():
        model = Frozen(fails_at=fails_at)
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(25):
            x = torch.randn(8, 16)
            optimizer.zero_grad()
            try:
                loss = model(x).square().mean()
            except ValueError:
                assert not model.body._forward_pre_hooks
                continue
            loss.backward()
            optimizer.step()

    assert run.errors == []
    assert sum(model.hooks_seen) == 3
    assert not model.body._forward_pre_hooks
    assert [alert.kind for alert in run.alerts] == ["never_a_gradient"]


def _updates(run: Hooked, optimizer: torch.optim.Optimizer, *, left_out: set[int]) -> None:
    """Updates as `Live` tells them: one that is left out is announced, and counts as a step."""
    for step in range(1, 31):
        run.watch.before_update(optimizer)
        run.watch.updated(optimizer, step, is_main=True, is_left_out=step in left_out)


def test_an_update_that_was_left_out_counts_for_nothing() -> None:
    run = Hooked()
    parameter = nn.Parameter(torch.ones(4))
    parameter.grad = torch.ones(4)
    optimizer = torch.optim.SGD([parameter], 1e-2)

    _updates(run, optimizer, left_out=set(range(1, 31)))

    assert run.watch._seen.updates == 0
    assert run.alerts == []


def test_after_a_rollback_and_after_a_resume_nothing_is_looked_for() -> None:
    for interrupt in ("rollback", "resume"):
        run = Hooked()
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], 1e-2)
        run.watch.updated(optimizer, 5, is_main=True, is_left_out=False)

        if interrupt == "rollback":
            run.watch.updated(optimizer, 3, is_main=True, is_left_out=False)
        else:
            run.watch.continue_at()

        assert not run.watch.is_on
        assert not run.watch.is_enabled
        assert not run.watch.sleeps


def test_weights_and_random_numbers_are_the_same_to_the_bit() -> None:
    def train(run: Hooked) -> None:
        torch.manual_seed(0)
        model = LanguageModel()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(70):
            tokens = torch.randint(VOCABULARY, (4, LENGTH))
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()

    found = []
    for is_enabled in (False, True):
        run = Hooked(is_enabled=is_enabled, keeps_states=True)
        with run.patched():
            train(run)
        found.append((run.states, len(run.alerts)))

    assert len(found[0][0]) == 70
    assert found[0][0] == found[1][0]
    assert [told for _, told in found] == [0, 1]


def test_a_kind_that_the_script_means_is_not_told() -> None:
    run = Hooked()

    run.watch.meant("never_a_gradient")

    assert not any(isinstance(kind, NeverGraded) for kind in run.watch._kinds)
    assert run.watch.is_kind("never_a_gradient")
    assert not run.watch.is_kind("other data from here on")


class LargeRate(Mistake):
    """A rate above one.

    Proof: the optimizer's own rate.
    Spares: nothing.
    """

    kind = "large_rate"

    def updated(self, seen: SeenSoFar, optimizer: Any, *, is_main: bool) -> Proof | None:
        if optimizer.param_groups[0]["lr"] <= 1.0:
            return None
        return Proof(fact="the rate is above one", where="", mend="a smaller one")


class Drawing(LargeRate):
    __doc__ = LargeRate.__doc__

    def before_update(self, seen: SeenSoFar, optimizer: Any) -> None:
        torch.rand(1)


def _trained(rate: float) -> Callable[[], None]:
    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), rate)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    return train


def test_a_kind_of_the_users_own_is_checked() -> None:
    check_mistake(LargeRate, bad=_trained(1.5), ok=_trained(0.1))

    with pytest.raises(AssertionError, match="told 0 times"):
        check_mistake(LargeRate, bad=_trained(0.1), ok=_trained(0.1))
    with pytest.raises(AssertionError, match="changes the bad training"):
        check_mistake(Drawing, bad=_trained(1.5), ok=_trained(0.1))
