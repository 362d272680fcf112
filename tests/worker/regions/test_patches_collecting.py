"""What torch's optimizer collects right before its step is what the step uses, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from supervisor.worker.regions.patches_collecting import AheadOfStep

Make = Callable[[list[torch.Tensor]], Optimizer]
MAKE: dict[str, Make] = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: AdamW([{"params": p[:2], "lr": 0.3}, {"params": p[2:]}], lr=0.1),
}


@pytest.fixture(autouse=True)
def _torchs_own() -> Iterator[None]:
    kinds: tuple[Any, ...] = (SGD, Adam, AdamW)
    own = [(kind, vars(kind)["_init_group"]) for kind in kinds if "_init_group" in vars(kind)]
    yield
    for kind, collects in own:
        kind._init_group = collects


def _parameters() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, requires_grad=True) for _ in range(4)]


def _give_gradients(parameters: list[torch.Tensor], step: int) -> None:
    for place, parameter in enumerate(parameters):
        is_used = (place + step) % 2
        parameter.grad = torch.full((3,), float(place + step)) if is_used else None


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_updates_are_the_same_to_the_bit(make: Make) -> None:
    plain, ours = _parameters(), _parameters()
    left, right, ahead = make(plain), make(ours), AheadOfStep()

    for step in range(4):
        _give_gradients(plain, step)
        _give_gradients(ours, step)
        collected = ahead.collect(right)
        left.step()
        right.step()
        ahead.forget()

        assert collected is not None
        used = [p.grad for p in ours if p.grad is not None]
        assert all(one is gradient for one, gradient in zip(collected, used, strict=True))
    assert all(map(torch.equal, plain, ours))
    both = zip(left.state_dict()["state"].items(), right.state_dict()["state"].items(), strict=True)
    for (place, entries), (other, others) in both:
        assert place == other
        assert all(
            torch.equal(torch.as_tensor(entries[key]), torch.as_tensor(others[key]))
            for key in entries.keys() | others.keys()
        )


def test_the_parameters_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own, times = SGD._init_group, []  # type: ignore[attr-defined]

    def counted(self: Any, group: Any, params: Any, grads: Any, momentum_buffer_list: Any) -> Any:
        times.append(group)
        return own(self, group, params, grads, momentum_buffer_list)

    monkeypatch.setattr(SGD, "_init_group", counted)
    parameters = _parameters()
    optimizer, ahead = SGD(parameters, lr=0.1), AheadOfStep()
    _give_gradients(parameters, 0)

    ahead.collect(optimizer)
    optimizer.step()

    assert len(times) == 1


def test_nothing_is_left_where_the_step_is_not_made() -> None:
    parameters = _parameters()
    optimizer, ahead = Adam(parameters, lr=0.1), AheadOfStep()
    _give_gradients(parameters, 0)
    optimizer.step()
    _give_gradients(parameters, 1)

    ahead.collect(optimizer)
    for parameter in parameters:
        parameter.grad = None
    ahead.undo()
    before = [parameter.clone() for parameter in parameters]
    optimizer.step()

    assert all(map(torch.equal, before, parameters))
    assert len(optimizer.state) == 2


class _Own(SGD):
    pass


def test_an_optimizer_of_another_kind_is_left_alone() -> None:
    assert AheadOfStep().collect(_Own(_parameters(), lr=0.1)) is None
    assert AheadOfStep().collect(torch.optim.RMSprop(_parameters(), lr=0.1)) is None


def test_what_the_step_will_raise_is_left_to_it() -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.ones(3).to_sparse()
    optimizer = Adam([weight], lr=0.1)

    assert AheadOfStep().collect(optimizer) is None
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
