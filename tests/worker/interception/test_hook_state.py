"""A checksum over what hooks keep in Python."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from supervisor.worker.interception.hook_state import hook_state

kept: dict[str, Any] = {}


def keep(name: str, module: nn.Module, given: Any, out: torch.Tensor) -> None:
    kept[name] = out.sum().item()


class Meter:
    def __init__(self) -> None:
        self.norms: list[float] = []

    def see(self, gradient: torch.Tensor) -> None:
        self.norms.append(gradient.norm().item())


def test_without_hooks_of_the_script_there_is_none() -> None:
    assert hook_state([nn.Linear(2, 2), weight_norm(nn.Linear(2, 2))]) == ""


def test_what_a_hook_writes_to_globals_closures_and_objects_is_seen() -> None:
    for_globals, for_closure, for_object = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    inner: list[int] = []
    meter = Meter()
    for_globals.register_forward_hook(functools.partial(keep, "a"))
    for_closure.register_forward_hook(lambda *_: inner.append(1))
    for_object.weight.register_hook(meter.see)
    for model in (for_globals, for_closure, for_object):
        before = hook_state([model])
        assert before == hook_state([model]) != ""
        model(torch.ones(1, 2)).sum().backward()
        assert hook_state([model]) != before


def test_a_hook_that_keeps_nothing_leaves_it_as_it_is() -> None:
    model = nn.Linear(2, 2)
    model.weight.register_hook(lambda g: g * 0.9)
    before = hook_state([model])
    model(torch.ones(1, 2)).sum().backward()
    assert hook_state([model]) == before
