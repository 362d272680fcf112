"""Generators that only a loop of the script holds: what is in their variables is compared."""

from __future__ import annotations

import gc
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from supervisor.training_state.census.reach import Reach
from supervisor.training_state.held_values import stamp
from supervisor.training_state.tensors import outside_autograd, storage_of
from supervisor.worker.ground.user_frames import is_users, is_within_unheld_loop

UNKNOWN = "not compared"
"""Of a value that lies on a device."""


def waiting_values(frames: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns generator and variable → digest of each real tensor or array that no variable of
    `frames` leads to.

    Called at a boundary, in the training's thread. Where a loop goes over something that may be in
    no variable, all objects of the process are looked through.
    """
    if not is_within_unheld_loop():
        return {}
    found = [
        (f"{one.__qualname__}.{name}", value)
        for one in gc.get_objects()
        if _waits(one)
        for name, value in one.gi_frame.f_locals.items()
        if _is_real(value)
    ]
    if not found:
        return {}
    reached = {storage_of(place.value) for place in Reach(frames) if _is_real(place.value)}
    digests: dict[str, list[str]] = {}
    with outside_autograd():
        for path, value in found:
            if storage_of(value) not in reached:
                digests.setdefault(path, []).append(_digest(value))
    return {path: "; ".join(sorted(all_of_it)) for path, all_of_it in digests.items()}


def differing(saved: Mapping[str, str], live: Mapping[str, str]) -> list[str]:
    """Returns what is not as it was, for a resume that says why it is not exact."""
    return [
        f"{path} is not as it was, and only a loop holds it"
        for path in sorted({*saved, *live})
        if saved.get(path) != live.get(path) or UNKNOWN in live.get(path, UNKNOWN)
    ]


def _waits(value: Any) -> bool:
    return (
        type(value) is types.GeneratorType
        and value.gi_frame is not None
        and not value.gi_running
        and is_users(value.gi_code.co_filename)
    )


def _is_real(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fc" and value.size > 0
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _digest(value: Any) -> str:
    is_near = isinstance(value, np.ndarray) or value.device.type == "cpu"
    return f"{value.dtype} {stamp(value)[1:]}" if is_near else UNKNOWN
