"""A gathered state as plain torch has it: no name or form of ours is left in it.

model       the model's ``state_dict``; model_0, model_1 ... if there are several
optimizer   the optimizer's ``state_dict``; optimizer_0 ... if there are several
scheduler   the same, where it holds nothing but numbers and tensors

Writes a checkpoint as plain torch loads it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from supervisor.errors import CheckpointError, SupervisorError, UsageError
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.files.private_files import open_private
from supervisor.training_state.plain_form import from_plain
from supervisor.training_state.sharding.gathered import (
    GatheredOptimizer,
    GatheredState,
    canonical,
    gather,
    read_all_ranks,
)

_PLAIN = (bool, int, float, str, type(None))


def plain_checkpoint(gathered: GatheredState, *, by_name: bool) -> dict[str, Any]:
    """Returns what ``load_state_dict`` of models and optimizers takes.

    Args:
        by_name: optimizers' parameters have names, as `torch.distributed.checkpoint` wants them,
            and not numbers, as ``Optimizer.state_dict`` has them.
    """
    optimizers = _outermost(gathered.optimizers)
    found: dict[str, Any] = {}
    for name in gathered.models:
        found[_key(name, gathered.models)] = _model(gathered, name)
    for name, optimizer in optimizers.items():
        strip = next(iter(gathered.models), "") if len(gathered.models) == 1 else ""
        made = _optimizer(optimizer, f"{strip}." if strip else "", by_name=by_name)
        found[_key(name, optimizers)] = made
    schedulers = gathered.first["schedulers"]
    for name, saved in schedulers.items():
        value = from_plain(saved) if isinstance(saved, Mapping) else None
        if value is not None and _is_plain(value):
            found[_key(name, schedulers)] = value
    return found


def _key(name: str, of_its_kind: Mapping[str, Any]) -> str:
    return name.rpartition("_")[0] if len(of_its_kind) == 1 else name


def _model(gathered: GatheredState, name: str) -> dict[str, torch.Tensor]:
    """A model's ``state_dict``, without the names of wrappers."""
    transient = set(gathered.first.get("transient", {}).get(name, ()))
    tensors = {key: t for key, t in gathered.models[name].items() if key not in transient}
    names = {key: canonical(key) for key in tensors}
    if len(set(names.values())) != len(names):
        names = {key: key for key in tensors}
    return {names[key]: tensor for key, tensor in tensors.items()}


def _outermost(optimizers: Mapping[str, GatheredOptimizer]) -> dict[str, GatheredOptimizer]:
    """Optimizers without those that another one has within: their state is its own."""
    found, inner = dict(optimizers), set()
    for name, one in optimizers.items():
        for other, outer in optimizers.items():
            keeps = bool(one.state) and not outer.state
            if other != name and keeps and one.state.keys() <= outer.dtypes.keys():
                inner.add(name)
                found[other] = replace(outer, state={**found[other].state, **one.state})
    return {name: one for name, one in found.items() if name not in inner}


def _optimizer(one: GatheredOptimizer, strip: str, *, by_name: bool) -> dict[str, Any]:
    order = [parameter for group in one.groups for parameter in group["params"]]
    called: dict[str, Any] = {
        parameter: parameter.removeprefix(strip) if by_name else index
        for index, parameter in enumerate(order)
    }
    return {
        "state": {
            called[parameter]: from_plain(one.state[parameter])
            for parameter in order
            if parameter in one.state
        },
        "param_groups": [
            {
                **from_plain({key: value for key, value in group.items() if key != "params"}),
                "params": [called[parameter] for parameter in group["params"]],
            }
            for group in one.groups
        ],
    }


def _is_plain(value: Any) -> bool:
    """Whether ``torch.load(weights_only=True)`` reads it."""
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(_is_plain(item) for item in value)
    return isinstance(value, torch.Tensor) or type(value) in _PLAIN


_DCP_FILE = ".metadata"


def write_torch(checkpoint: Checkpoint, target: Path) -> None:
    """Writes one file for ``torch.load(..., weights_only=True)``.

    Raises:
        CheckpointError: the checkpoint's ranks cannot be joined.
        OSError: the disk refuses; nothing is left.
    """
    content = _content(checkpoint, by_name=False)
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with open_private(unfinished, "wb") as file:
            torch.save(content, file)
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def write_dcp(checkpoint: Checkpoint, target: Path) -> None:
    """Writes a folder for ``torch.distributed.checkpoint.load``.

    Raises:
        CheckpointError: the checkpoint's ranks cannot be joined.
        UsageError: `target` is a folder of something else.
        OSError: the disk refuses.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    if target.is_dir() and any(target.iterdir()) and not (target / _DCP_FILE).is_file():
        raise UsageError(f"{target}: holds other files: give a new folder as --output")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is one process
            alone = {"no_dist": True} if "no_dist" in inspect.signature(save).parameters else {}
            save(_content(checkpoint, by_name=True), checkpoint_id=target, **alone)
    except SupervisorError:
        raise
    except Exception as error:  # torch wraps what the disk says
        raise OSError(0, f"{type(error).__name__}: {str(error).splitlines()[0]}") from error


def _content(checkpoint: Checkpoint, *, by_name: bool) -> dict[str, object]:
    try:
        gathered = gather(read_all_ranks(checkpoint))
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: cannot be exported: {error}") from error
    return plain_checkpoint(gathered, by_name=by_name)
