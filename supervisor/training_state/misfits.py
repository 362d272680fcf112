"""Says why a saved state does not fit, before the first tensor is written."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from supervisor.errors import CheckpointError
from supervisor.training_state.plain_form import from_plain

_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_OVERLAPS = 1
"""Torch's code for an expanded tensor, which can be read but not written."""

_BY_GROUP = ("base_lrs", "_last_lr", "_schedulers", "lr_lambdas")
"""Lists in torch's schedules with one entry per group, or per schedule within."""


def misfit(target: torch.Tensor, saved: torch.Tensor) -> str:
    """Returns why `saved` cannot be written into `target` of the same shape; empty if it can.

    Another precision fits (the FP32 fallback needs it) unless values would become infinite.
    """
    if target.layout != saved.layout:
        return f"{_short(saved.layout)} in the checkpoint, {_short(target.layout)} now"
    if target.dtype != saved.dtype and not (
        target.is_floating_point() and saved.is_floating_point()
    ):
        return f"{_short(saved.dtype)} in the checkpoint, {_short(target.dtype)} now"
    if target.device.type == "meta":
        return "it is on the device meta now, where nothing can be written"
    if type(target) in _ORDINARY and target.layout == torch.strided and target.numel():
        if target.untyped_storage().nbytes() < _end(target):
            return "its memory has been freed"
        if torch._debug_has_internal_overlap(target) == _OVERLAPS:
            return "its elements share their memory"
    if target.dtype != saved.dtype and saved.numel():
        largest = float(saved.detach().abs().max())
        if torch.finfo(target.dtype).max < largest < float("inf"):
            return f"{largest:g} in the checkpoint is too large for {_short(target.dtype)}"
    return ""


def check_tensor(where: str, target: torch.Tensor, saved: torch.Tensor) -> None:
    """Raises CheckpointError if `saved` cannot be written into `target`."""
    why = misfit(target, saved)
    if why:
        raise CheckpointError(f"{where}: {why}: restore the model's code or its arguments")


def check_parts(state: Mapping[str, Any], parts: Iterable[str], models: Iterable[str]) -> None:
    """Raises CheckpointError if something is missing that a model has."""
    for part in parts:
        for name in models:
            if name not in state.get(part, {}):
                raise CheckpointError(f"{name}: the checkpoint does not hold its {part}")


def check_scaler(where: str, scaler: Any, saved: Mapping[str, Any]) -> None:
    """Raises CheckpointError if the tensors of `saved` cannot be written into those of `scaler`."""
    for name, value in saved.items():
        live = getattr(scaler, name, None)
        if isinstance(value, torch.Tensor) and isinstance(live, torch.Tensor):
            if live.shape != value.shape:
                raise CheckpointError(f"{where}: {name} has another shape in the checkpoint")
            check_tensor(f"{where}: {name}", live, value)


def check_schedule(where: str, schedule: Any, saved: Any) -> None:
    """Raises CheckpointError if `saved` is of a schedule over other groups or other schedules."""
    if not isinstance(saved, dict):
        return
    for name in _BY_GROUP:
        live, then = getattr(schedule, name, None), saved.get(name)
        if isinstance(live, list) and isinstance(then, list) and len(live) != len(then):
            raise CheckpointError(
                f"{where}: {name} has {len(then)} entries in the checkpoint, {len(live)} in the "
                "script: build the schedule as the run did"
            )


def check_random(state: Mapping[str, Any]) -> None:
    """Raises CheckpointError if a generator would refuse its state; others try it in its place."""
    python, numpy, on_host = (state.get(name) for name in ("python", "numpy", "torch"))
    try:
        if python is not None:
            words = tuple(python["words"].numpy().tolist())
            random.Random().setstate((python["version"], words, python["gauss"]))
        if numpy is not None:
            np.random.RandomState().set_state(from_plain(numpy))
        if on_host is not None:
            torch.Generator().set_state(on_host.cpu())
        if torch.cuda.is_available():
            for one in (state.get("cuda") or [])[: torch.cuda.device_count()]:
                torch.Generator(device="cuda").set_state(one.cpu())
    except Exception as error:
        raise CheckpointError(
            f"random generators: {type(error).__name__}: {error}: their states in the checkpoint "
            "are of another version of Python, NumPy or torch"
        ) from error


def _end(tensor: torch.Tensor) -> int:
    """The end of its last element in its storage, in bytes."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in places)
    return int(last + 1) * tensor.element_size()


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")
