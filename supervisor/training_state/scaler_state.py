"""A `torch.amp.GradScaler`: its settings and the two tensors that it creates at first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from supervisor.training_state.own_methods import OwnMethod
from supervisor.training_state.plain_form import to_plain
from supervisor.training_state.tensors import outside_autograd, write_into

_TENSORS = ("_scale", "_growth_tracker")
_SETTINGS = ("_init_scale", "_growth_factor", "_backoff_factor", "_growth_interval")


def capture_scaler(scaler: Any, where: str, left_out: list[str]) -> dict[str, Any]:
    """Returns live tensors and settings; nothing is read from a device."""
    if not hasattr(scaler, "_scale"):
        return {"state_dict": to_plain(scaler.state_dict(), where, left_out)}
    return {name: getattr(scaler, name, None) for name in (*_TENSORS, *_SETTINGS)}


def own_methods(where: str, scaler: Any, saved: Mapping[str, Any]) -> list[OwnMethod]:
    """Returns how a scaler that is not torch's loads its state."""
    if "state_dict" not in saved:
        return []
    load, give = scaler.load_state_dict, scaler.state_dict
    return [OwnMethod(name=where, saved=saved["state_dict"], load=load, give=give)]


def restore_scaler(scaler: Any, saved: Mapping[str, Any]) -> None:
    """Restores scale and growth tracker in place, or removes them if they did not exist then."""
    if "state_dict" in saved:
        return  # by a method of its own
    with outside_autograd():
        for name in _TENSORS:
            value, live = saved[name], getattr(scaler, name, None)
            if isinstance(value, torch.Tensor) and isinstance(live, torch.Tensor):
                write_into(live, value)
            elif isinstance(value, torch.Tensor):
                device = getattr(scaler, "_device", "cpu")
                setattr(scaler, name, value.detach().to(device, copy=True))
            else:
                setattr(scaler, name, None)
    for name in _SETTINGS:
        if saved.get(name) is not None:
            setattr(scaler, name, saved[name])
