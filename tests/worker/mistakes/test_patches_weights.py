"""The two patched methods of a module take what torch's own take."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from benchmarks.hooked_script import HookedScript
from supervisor.worker.core.call_state import CallState
from supervisor.worker.mistakes.patches_weights import watch_weights


def test_every_way_to_take_weights_out_and_put_them_in_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    export, load = nn.Module.state_dict, nn.Module.load_state_dict
    monkeypatch.setattr(nn.Module, "state_dict", export)
    monkeypatch.setattr(nn.Module, "load_state_dict", load)
    run, call_state = HookedScript(), CallState()
    call_state.active = True
    watch_weights(call_state, run.watch)
    net, other = nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3))

    state = net.state_dict()
    assert list(net.state_dict(prefix="a.")) == ["a.0.weight", "a.0.bias"]
    other.load_state_dict(state)
    other.load_state_dict(state, False)
    other.load_state_dict(state_dict=state, strict=True)
    other.load_state_dict(state, True, True)

    assert other[0].weight.data_ptr() == net[0].weight.data_ptr()  # assigned
    assert torch.equal(other[0].bias, net[0].bias)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({})
    assert inspect.signature(nn.Module.load_state_dict) == inspect.signature(load)
    assert run.errors == []
    assert call_state.depth == 0
