"""Parameters, buffers and training flags of one model.

Plain attributes of modules that `forward` may change: call counters, decay factors, histories.

They are in no ``state_dict``, and a fast-forward does not run `forward`, so they come from the
checkpoint.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from supervisor.errors import CheckpointError
from supervisor.training_state.own_methods import OwnMethod
from supervisor.training_state.plain_form import check_tensor, from_plain, restore_problem, to_plain
from supervisor.training_state.tensors import local, outside_autograd, write_into

_ORDINARY = (torch.Tensor, nn.Parameter)
_TORCHS_OWN = (nn.Module.named_parameters, nn.Module.named_buffers)


Named = dict[str, torch.Tensor]


Parts = list[tuple[str, nn.Module]]


def named_parts(model: nn.Module) -> Parts:
    """Returns all submodules, shared ones under each of their names."""
    return list(model.named_modules(remove_duplicate=False))


def named_tensors(model: nn.Module, parts: Parts | None = None) -> tuple[Named, Named]:
    """Returns all parameters and all buffers, non-persistent ones too, under ``state_dict`` names.

    Tied tensors appear under each of their names as one object.

    Args:
        parts: `named_parts`, where they are known already.
    """
    if (type(model).named_parameters, type(model).named_buffers) != _TORCHS_OWN:
        try:
            return (
                dict(model.named_parameters(remove_duplicate=False)),
                dict(model.named_buffers(remove_duplicate=False)),
            )
        except TypeError:  # one of the model's own, with other arguments than torch's
            pass
    parameters: Named = {}
    buffers: Named = {}
    for path, part in parts or named_parts(model):  # one pass instead of two
        prefix = f"{path}." if path else ""
        for found, own in ((parameters, part._parameters), (buffers, part._buffers)):
            for name, tensor in own.items():
                if tensor is not None:
                    found[prefix + name] = tensor
    return parameters, buffers


def model_tensors(model: nn.Module) -> Named:
    """Returns the parameters and buffers of a checkpoint (`named_tensors`), without lazy ones."""
    return held_tensors(*named_tensors(model))


def held_tensors(parameters: Named, buffers: Named) -> Named:
    lazy = (nn.UninitializedParameter, nn.UninitializedBuffer)
    found = parameters | buffers
    return {
        name: t if type(t) in _ORDINARY else local(t)
        for name, t in found.items()
        if type(t) not in lazy
    }


def check_model(where: str, model: nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Raises CheckpointError if a saved parameter is missing or has another shape, or vice versa.

    Buffers may differ: a model may create or grow them while it runs.
    """
    live = model_tensors(model)
    parameters, buffers = named_tensors(model)
    for name in sorted(parameters.keys() - saved.keys()):
        if name in live:
            raise CheckpointError(
                f"{where}.{name}: not in the checkpoint: it was saved from another model; "
                "start a new run directory, or restore the model's code"
            )
    for name, tensor in saved.items():
        if name in parameters and name in live:
            if live[name].shape != tensor.shape:
                raise CheckpointError(
                    f"{where}.{name}: shape {tuple(tensor.shape)} in the checkpoint, "
                    f"{tuple(live[name].shape)} in the model: restore the model's code or its "
                    "arguments, or start a new run directory"
                )
            check_tensor(f"{where}.{name}", live[name], tensor)
        elif name not in parameters and name not in buffers and not _is_buffer_place(model, name):
            raise CheckpointError(
                f"{where}.{name}: in the checkpoint but not in the model: restore the model's "
                "code or its arguments, or start a new run directory"
            )


def restore_model(model: nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
    """Copies `saved` into the live tensors; call `check_model` first.

    Buffers of another shape are replaced. ``requires_grad`` is never changed.
    """
    _end_gathering(model)
    parameters, buffers = named_tensors(model)
    live = parameters | buffers
    written: set[int] = set()
    with outside_autograd():
        for name, tensor in saved.items():
            target = live.get(name)
            if target is not None and id(target) in written:
                continue
            if target is not None and _fits(target, tensor):
                write_into(target, tensor)
                written.add(id(target))
            elif isinstance(target, nn.Parameter):
                continue  # lazy and not yet materialised: it gets its value when it is
            else:
                path, _, leaf = name.rpartition(".")
                device = _device_of(model) if target is None else target.device
                model.get_submodule(path)._buffers[leaf] = tensor.detach().to(device, copy=True)


def heal_buffers(model: nn.Module, saved: Mapping[str, torch.Tensor]) -> list[str]:
    """Restores buffers that are finite in `saved` but not now; returns their names.

    Called after an update was left out: its forward may have put NaN into running statistics.
    """
    healed = []
    with outside_autograd():
        for name, buffer in named_tensors(model)[1].items():
            then = saved.get(name)
            if then is None or not buffer.is_floating_point() or buffer.shape != then.shape:
                continue
            if not bool(local(buffer).isfinite().all()) and bool(then.isfinite().all()):
                write_into(buffer, then)
                healed.append(name)
    return healed


def modes(parts: Parts) -> dict[str, bool]:
    """Returns the ``training`` flag of every submodule by its name."""
    return {name: part.training for name, part in parts}


def restore_modes(model: nn.Module, saved: Mapping[str, bool]) -> None:
    for name, part in model.named_modules():
        if name in saved:
            part.training = saved[name]


def extra_states(parts: Parts, where: str, left_out: list[str]) -> dict[str, Any]:
    """Returns the extra states of submodules that have ``get_extra_state``, in plain form."""
    return {
        name: to_plain(part.get_extra_state(), f"{where}.{name} extra state", left_out)
        for name, part in parts
        if type(part).get_extra_state is not nn.Module.get_extra_state
    }


def extra_state_methods(model: nn.Module, where: str, saved: Mapping[str, Any]) -> list[OwnMethod]:
    """Returns how submodules with ``set_extra_state`` load what `extra_states` returned."""
    parts = dict(model.named_modules())
    return [
        OwnMethod(
            name=f"{where}.{name} extra state",
            saved=state,
            load=parts[name].set_extra_state,
            give=parts[name].get_extra_state,
        )
        for name, state in saved.items()
        if name in parts and type(parts[name]).set_extra_state is not nn.Module.set_extra_state
    ]


def _fits(target: torch.Tensor, saved: torch.Tensor) -> bool:
    live = local(target)
    return live.shape == saved.shape and not restore_problem(live, saved)


def _is_buffer_place(model: nn.Module, name: str) -> bool:
    """Returns whether a buffer of that name may be created: its module exists and the name is
    free."""
    path, _, leaf = name.rpartition(".")
    try:
        part = model.get_submodule(path)
    except AttributeError:
        return False
    return leaf in part._buffers or leaf in part._parameters


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _end_gathering(model: nn.Module) -> None:
    """FSDP2 may be gathering weights for the next forward (``unshard(async_op=True)``): those that
    are replaced now. It gathers again in that forward, on all ranks."""
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    for part in model.modules() if kind is not None else ():
        if isinstance(part, kind) and any(map(_is_under_way, _groups_of(part))):
            part.unshard()
            part.reshard()


def _groups_of(part: Any) -> Sequence[Any]:
    state = part._get_fsdp_state()
    return getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]


def _is_under_way(group: Any) -> bool:
    return getattr(group, "_all_gather_result", None) is not None


_ITEMS_LIMIT = 1000
_INTERNAL = frozenset(vars(nn.Module()))
_PLAIN_ALREADY = frozenset({bool, int, float, str, type(None)})
_SCALARS = (bool, int, float, str, complex, type(None))


def module_attributes(module: nn.Module, parts: Parts | None = None) -> dict[str, Any]:
    """Returns ``submodule:attribute`` → plain form, for scalars and short containers of them.

    Args:
        parts: `named_parts`, where they are known already.
    """
    left_out: list[str] = []
    places = _places(parts or named_parts(module))
    return {
        path: owner[name]
        if type(owner[name]) in _PLAIN_ALREADY
        else to_plain(owner[name], path, left_out)
        for path, owner, name in places
    }


def put_back_attributes(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Sets attributes from `module_attributes`; lists, deques and dicts are changed in place.

    Equal values are not replaced: pickled files of the script show which objects are shared.
    """
    for path, owner, name in list(_places(named_parts(module))):
        if path not in saved:
            continue
        value, live = from_plain(saved[path]), owner[name]
        if type(live) is type(value) and repr(live) == repr(value):  # tells -0.0 from 0.0
            continue
        if isinstance(live, list) and isinstance(value, list):
            live[:] = value
        elif isinstance(live, dict) and isinstance(value, dict):
            live.clear()
            live.update(value)
        elif isinstance(live, collections.deque) and isinstance(value, collections.deque):
            live.clear()
            live.extend(value)
        else:
            owner[name] = value


def _places(parts: Parts) -> Iterator[tuple[str, dict[str, Any], str]]:
    for path, part in parts:
        own = vars(part)
        for name in sorted(own.keys() - _INTERNAL):
            if _is_plain(own[name]):
                yield f"{path}:{name}", own, name


def _is_plain(value: Any) -> bool:
    if type(value) in _SCALARS:
        return True
    if type(value) in (list, tuple, collections.deque):
        return len(value) <= _ITEMS_LIMIT and all(type(item) in _SCALARS for item in value)
    if type(value) is dict:
        return len(value) <= _ITEMS_LIMIT and all(
            type(key) in _SCALARS and type(item) in _SCALARS for key, item in value.items()
        )
    return False
