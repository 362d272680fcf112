"""Parts of a state that objects load by methods of their own: schedules, scalers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from supervisor.errors import CheckpointError, StateTorn, pass_on
from supervisor.training_state.plain_form import from_plain, to_plain
from supervisor.training_state.snapshot import copy_state
from supervisor.training_state.tensors import first_difference, fresh, outside_autograd, write_into


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMethod:
    """An object that loads its own state.

    Attributes:
        name: for messages.
        saved: the state, in plain form.
        load: takes a state.
        give: returns the object's present state.
    """

    name: str
    saved: Any
    load: Callable[[Any], Any]
    give: Callable[[], Any]


def load_all(methods: Sequence[OwnMethod]) -> None:
    """Loads every state or none: if a method raises, the others are taken back.

    Called before the first tensor is written, since a user's method may do anything.

    Raises:
        CheckpointError: one raised; every object has its former state.
        StateTorn: one raised, and one could not be taken back.
    """
    before = [_state_of(method) for method in methods]
    for done, method in enumerate(methods, start=1):
        try:
            method.load(_built(method.saved))
        except BaseException as error:
            pass_on(error)
            text = f"{method.name}: {type(error).__name__}: {error}"
            _take_back(methods[:done], before[:done], text)
            raise CheckpointError(f"{text}: nothing was changed") from error


def _state_of(method: OwnMethod) -> Any:
    """Returns a copy in plain form; None if the object cannot give one."""
    left_out: list[str] = []
    try:
        plain = copy_state({"now": to_plain(method.give(), method.name, left_out)})["now"]
    except BaseException as error:  # the user's own method
        pass_on(error)
        return None
    return None if left_out else plain


def _take_back(methods: Sequence[OwnMethod], before: Sequence[Any], text: str) -> None:
    for method, state in reversed(list(zip(methods, before, strict=True))):
        if state is None:
            raise StateTorn(f"{text}: and what {method.name} was before is not known")
        if first_difference({"": state}, {"": _state_of(method)}) is None:
            continue
        try:
            method.load(_built(state))
        except BaseException as error:
            pass_on(error)
            raise StateTorn(f"{text}: {method.name} could not be taken back: {error}") from error


def _built(plain: Any) -> Any:
    """Copies tensors, so that the object shares no memory with the saved state."""
    return fresh(from_plain(plain))


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


def capture_stages(scaler: Any, optimizers: Mapping[str, Optimizer]) -> dict[str, dict[str, Any]]:
    """Returns optimizer → how far the scaler has come with it in the step under way, and what it
    found in its gradients: not empty between its ``unscale_`` and its ``update`` only."""
    stages = getattr(scaler, "_per_optimizer_states", {})
    names = {id(optimizer): name for name, optimizer in optimizers.items()}
    return {
        names[key]: {
            "stage": stage["stage"].value,
            "found_inf": {str(d): found for d, found in stage["found_inf_per_device"].items()},
        }
        for key, stage in stages.items()
        if key in names
    }


def restore_stages(
    scaler: Any, optimizers: Mapping[str, Optimizer], saved: Mapping[str, Mapping[str, Any]]
) -> None:
    """Puts back what `capture_stages` returned."""
    with outside_autograd():
        for name, stage in saved.items():
            live = scaler._per_optimizer_states[id(optimizers[name])]
            live["stage"] = OptState(stage["stage"])
            live["found_inf_per_device"] = {
                torch.device(d): found.to(d, copy=True) for d, found in stage["found_inf"].items()
            }
