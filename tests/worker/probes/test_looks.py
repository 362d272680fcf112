"""What the looks find on small real models, and what they leave as it was."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import dataloader

from supervisor.worker.core.call_state import CallState
from supervisor.worker.probes.forward_sample import ForwardSample
from supervisor.worker.probes.patches_probes import sample_modules
from supervisor.worker.probes.update_sample import UpdateSample


class Sampling:
    """Hands everything on to a look, as `Probes` does."""

    def __init__(self, look: ForwardSample) -> None:
        self.look = look

    def saw_module(self, module: nn.Module, output: Any, *, is_root: bool) -> None:
        self.look.saw(module, output, is_root=is_root)

    def waited(self, seconds: float) -> None:
        pass

    def saw_scores(self, module: nn.Module, scores: Any) -> None:
        self.look.attention.saw_scores(scores, self.look.readings, "here")

    def saw_product(self, module: nn.Module, query: Any, key: Any, given: dict[str, Any]) -> None:
        self.look.attention.saw_product(query, key, self.look.readings, "here", given)


@pytest.fixture
def call_state() -> Iterator[CallState]:
    """As `instrument` leaves it: the outermost forward is a region."""
    call_state, before = CallState(), nn.Module.__call__

    def outermost(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call_state.depth += 1
        try:
            return before(self, *args, **kwargs)
        finally:
            call_state.depth -= 1

    nn.Module.__call__ = outermost  # type: ignore[method-assign]
    yield call_state
    nn.Module.__call__ = before  # type: ignore[method-assign]


def looked_at(model: nn.Module, inputs: torch.Tensor, call_state: CallState) -> dict[str, float]:
    look = ForwardSample()
    look.start({"model": model})
    take_off = sample_modules(Sampling(look), call_state)
    model(inputs)
    take_off()
    return look.take()


class Attention(nn.Module):
    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.by_hand = by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key = self.query(x)[:, None], self.key(x)[:, None]
        if not self.by_hand:
            return functional.scaled_dot_product_attention(query, key, x[:, None], is_causal=True)
        scores = query @ key.transpose(-2, -1) / math.sqrt(8)
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        return torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ x[:, None]


def test_attention_by_hand_and_by_torch_look_the_same(call_state: CallState) -> None:
    torch.manual_seed(0)
    one, other = Attention(by_hand=True), Attention(by_hand=False)
    other.load_state_dict(one.state_dict())
    inputs = torch.randn(1, 12, 8)

    seen, by_torch = looked_at(one, inputs, call_state), looked_at(other, inputs, call_state)

    scores = one.query(inputs) @ one.key(inputs).transpose(-2, -1) / math.sqrt(8)
    largest = float(scores.detach().tril().abs().max())
    assert seen["attention_logit_max"] == pytest.approx(largest, rel=1e-5)
    for figure in ("attention_logit_max", "attention_entropy"):
        assert seen[figure] == pytest.approx(by_torch[figure], rel=1e-5)
    assert 0.5 < seen["attention_entropy"] < 1.0


def test_dead_units_and_a_constant_layer_are_seen(call_state: CallState) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))
    healthy = looked_at(model, torch.randn(32, 4), call_state)
    with torch.no_grad():
        model[0].bias[:8] = -1e3
        model[2].weight.zero_()
    sick = looked_at(model, torch.randn(32, 4), call_state)

    assert healthy["dead_units_share"] < 0.3
    assert sick["dead_units_share"] == pytest.approx(0.8, abs=0.11)
    assert healthy["representation_spread"] > 0.01
    assert sick["representation_spread"] < 1e-6


def test_half_precision_is_measured_against_its_largest_number(
    call_state: CallState,
) -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 2, dtype=torch.float16))
    with torch.no_grad():
        model[1].weight.fill_(1.0)
        model[1].bias.zero_()

    seen = looked_at(model, torch.full((8, 2), 3e4, dtype=torch.float16), call_state)

    assert seen["activation_max"] == pytest.approx(6e4, rel=1e-3)
    assert seen["activation_range"] == pytest.approx(6e4 / 65504, rel=1e-3)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_mu, self.fc_logvar = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc_mu(x) + self.fc_logvar(x).exp()


class Answer(NamedTuple):
    recon: torch.Tensor
    z_mean: torch.Tensor
    z_log_var: torch.Tensor


class Returning(nn.Module):
    """As most autoencoders end."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 6), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean), mean, log_variance


class Named(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.output = output

    def forward(self, x: torch.Tensor) -> Any:
        return self.output


def test_latents_and_rewards_are_found_under_common_names(call_state: CallState) -> None:
    x = torch.randn(8, 4)
    flat = torch.zeros(8, 3)
    pair = {"chosen_rewards": torch.ones(6), "rejected_rewards": torch.zeros(6)}

    by_parts = looked_at(Encoder(), x, call_state)
    by_output = looked_at(Named(Answer(x, flat, flat)), x, call_state)
    rewards = looked_at(Named({**pair, "entropy": torch.tensor([1.0, 3.0])}), x, call_state)
    unnamed = looked_at(Named((x, flat, flat)), x, call_state)
    by_return = looked_at(Returning(), x, call_state)

    assert by_parts["kl"] > 0.0
    assert by_return["kl"] > 0.0
    assert (by_output["kl"], by_output["active_units"]) == (0.0, 0.0)
    assert (rewards["reward_margin"], rewards["reward_accuracy"]) == (1.0, 1.0)
    assert rewards["entropy"] == 2.0
    assert "kl" not in unnamed


def stepped(optimizer: torch.optim.Optimizer, gradient: float) -> dict[str, float]:
    """One update with a gradient of that size everywhere, looked at."""
    look = UpdateSample()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, gradient)
    found = look.before_update(optimizer, parameters)
    optimizer.step()
    return found | look.after_update()


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_the_size_of_an_update_is_seen(make: Any) -> None:
    model = nn.Linear(30, 30)
    with torch.no_grad():
        model.weight.fill_(0.1)
    optimizer = make(model.parameters(), lr=1e-3)
    for _ in range(50):
        usual = stepped(optimizer, 1.0)

    assert usual["update_ratio"] == pytest.approx(1e-3 / (0.1 - 49e-3), rel=1e-2)


def test_layers_without_gradient_are_a_share_unless_all_are() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, float(index > 3))

    seen = UpdateSample().before_update(optimizer, parameters)
    optimizer.zero_grad(set_to_none=False)

    assert seen["dead_layers_share"] == 0.5
    assert UpdateSample().before_update(optimizer, parameters) == {}


def test_the_largest_gradient_of_a_layer_is_that_before_clipping() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    for parameter, size in zip(parameters, (1.0, 1.0, 60.0, 0.0), strict=True):
        parameter.grad = torch.full_like(parameter, size)
    look = UpdateSample()
    norm = float(nn.utils.clip_grad_norm_(parameters, 1.0))

    seen = look.before_update(optimizer, parameters, norm)

    assert seen["layer_gradient_max"] == pytest.approx(240.0, rel=1e-4)
    assert look.largest["layer_gradient_max"][0][0]() is parameters[2]


def test_the_patches_leave_nothing_behind(call_state: CallState) -> None:
    names = [(nn.Module, "__call__"), (torch, "softmax"), (functional, "softmax")]
    names += [(functional, "scaled_dot_product_attention"), (torch.Tensor, "softmax")]
    names += [(dataloader._BaseDataLoaderIter, "__next__")]
    before = [getattr(owner, name) for owner, name in names]

    looked_at(Attention(by_hand=True), torch.randn(1, 9, 8), call_state)

    assert [getattr(owner, name) for owner, name in names] == before
    assert "softmax" not in vars(torch.Tensor)


def test_a_look_keeps_no_model_alive() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    parameters = [model.weight, model.bias]
    model.weight.grad, model.bias.grad = torch.ones(3, 3), torch.ones(3)
    look = UpdateSample()

    look.before_update(optimizer, parameters)
    optimizer.step()
    look.after_update()
    weight = weakref.ref(model.weight)
    del model, optimizer, parameters
    gc.collect()

    assert look.largest
    assert weight() is None
