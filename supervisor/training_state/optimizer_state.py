"""State, parameter groups and parameters outside of any model, for one optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from supervisor.errors import CheckpointError
from supervisor.training_state.plain_form import (
    as_in_code,
    check_tensor,
    from_plain,
    restore_problem,
    to_plain,
)
from supervisor.training_state.tensors import fresh, local, outside_autograd, write_into

_PLAIN = frozenset({torch.Tensor, bool, int, float, str, type(None)})
_OWN_ATTRIBUTES = frozenset({"defaults", "state", "param_groups"})


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns all parameters in the order of the groups; a state names them by index."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """Returns the rate of its first group; NaN for an optimizer that has none, as one that wraps
    SciPy's L-BFGS-B, or that finds its own, as Adafactor with ``lr=None``."""
    rate = optimizer.param_groups[0].get("lr")
    return math.nan if rate is None else float(rate)


def capture_optimizer(
    optimizer: torch.optim.Optimizer, where: str, left_out: list[str], in_models: set[int]
) -> dict[str, Any]:
    """Returns live state by parameter index, the groups, and parameters outside all models.

    Args:
        in_models: ids of the parameters that are saved with a model.
    """
    parameters = optimizer_parameters(optimizer)
    index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
    state: dict[Any, Any] = {}
    shared: dict[str, Any] = {}
    for key, entries in optimizer.state.items():
        if id(key) in index_of:
            index = index_of[id(key)]
            if _PLAIN.issuperset(map(type, entries.values())):
                state[index] = dict(entries)
            else:
                state[index] = to_plain(dict(entries), f"{where} state {index}", left_out)
        elif isinstance(key, str):
            shared[key] = to_plain(entries, f"{where} state {key}", left_out)
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        rest = {key: value for key, value in group.items() if key != "params"}
        saved = to_plain(rest, f"{where} group {number}", left_out)
        groups.append(saved | {"params": [index_of[id(p)] for p in group["params"]]})
    loose = {i: local(p) for i, p in enumerate(parameters) if id(p) not in in_models}
    return {
        "state": state,
        "shared": shared,
        "param_groups": groups,
        "parameters": loose,
        "dtypes": [str(parameter.dtype) for parameter in parameters],
        "attributes": _attributes(optimizer),
    }


def check_optimizer(where: str, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Raises CheckpointError if the groups have other sizes or a parameter another shape."""
    live = [len(group["params"]) for group in optimizer.param_groups]
    then = [len(group["params"]) for group in saved["param_groups"]]
    if live != then:
        raise CheckpointError(
            f"{where}: parameters per group are {live}, {then} in the checkpoint: build the "
            "optimizer as the run did, or start a new run directory"
        )
    parameters = optimizer_parameters(optimizer)
    for index, tensor in saved["parameters"].items():
        if local(parameters[index]).shape != tensor.shape:
            raise CheckpointError(
                f"{where}: parameter {index} has shape {tuple(parameters[index].shape)}, "
                f"{tuple(tensor.shape)} in the checkpoint: restore the script's arguments"
            )
        check_tensor(f"{where}: parameter {index}", local(parameters[index]), tensor)
    try:
        from_plain([saved["state"], saved["shared"], saved["param_groups"]])
    except Exception as error:
        raise CheckpointError(
            f"{where}: its state cannot be built again: {type(error).__name__}: {error}"
        ) from error
    if len(saved["dtypes"]) != len(parameters):
        raise CheckpointError(f"{where}: the checkpoint holds {len(saved['dtypes'])} dtypes")


def restore_optimizer(
    optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], *, groups: bool
) -> None:
    """Makes the state exactly the saved one, in place where a tensor of that shape exists.

    Later entries are removed; all come in their order. With `groups` hyperparameters and other
    plain attributes are restored too; otherwise they stay as the user's schedule has set them.
    """
    parameters = optimizer_parameters(optimizer)
    with outside_autograd():
        for index, tensor in saved["parameters"].items():
            write_into(parameters[index], tensor)
        for index, parameter in enumerate(parameters):
            if index not in saved["state"]:
                optimizer.state.pop(parameter, None)
                continue
            entries = optimizer.state[parameter]
            wanted = from_plain(saved["state"][index])
            if str(parameter.dtype) != saved["dtypes"][index]:
                wanted = _cast(wanted, saved["dtypes"][index], parameter.dtype)
            eager = _wants_step_on_device(optimizer, parameter)
            for key in [key for key in entries if key not in wanted]:
                del entries[key]
            for key, value in wanted.items():
                on_host = key == "step" and not eager
                entries[key] = _put(entries.pop(key, None), value, parameter, on_host)
        for index in saved["state"]:  # files of the script's hold them in their order
            optimizer.state[parameters[index]] = optimizer.state.pop(parameters[index])
        for key, value in saved["shared"].items():
            optimizer.state[key] = _put(
                optimizer.state.get(key), from_plain(value), parameters[0], False
            )
        if groups:
            _restore_groups(optimizer, saved)


def _restore_groups(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    for group, then in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for key, value in then.items():
            if key == "params":
                continue
            live = group.get(key)
            if isinstance(live, torch.Tensor) and _is_place_for(live, value):
                write_into(live, value)
            elif not (key in group and _is_same_number(live, value)):
                group[as_in_code(key)] = fresh(from_plain(value))
    for name, value in saved["attributes"].items():
        setattr(optimizer, name, value)


def _is_same_number(live: Any, saved: Any) -> bool:
    """Returns whether both are the same number, text or pair. Such a value is not replaced: pickled
    files of the script show which objects are shared."""
    items = live if isinstance(live, tuple) else (live,)
    is_plain = all(item is None or isinstance(item, (bool, int, float, str)) for item in items)
    return is_plain and type(live) is type(saved) and repr(live) == repr(saved)


def _put(live: Any, saved: Any, parameter: torch.Tensor, on_host: bool) -> Any:
    """Returns `live` with the saved values written into it, or a new value if that cannot be."""
    if isinstance(saved, torch.Tensor):
        if _is_place_for(live, saved) and live.dtype == saved.dtype:
            write_into(live, saved)
            return live
        return fresh(saved, None if on_host else parameter.device)
    if isinstance(saved, list) and isinstance(live, list) and len(saved) == len(live):
        live[:] = [_put(*pair, parameter, on_host) for pair in zip(live, saved, strict=True)]
        return live
    return fresh(saved, parameter.device)


def _is_place_for(live: Any, saved: Any) -> bool:
    if not (isinstance(live, torch.Tensor) and isinstance(saved, torch.Tensor)):
        return False
    return local(live).shape == saved.shape and not restore_problem(local(live), saved)


def _cast(entries: dict[str, Any], before: str, dtype: torch.dtype) -> dict[str, Any]:
    """Casts to the precision of a parameter that has changed it since (FP32 fallback)."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if str(value.dtype) == before else value
        return [cast(item) for item in value] if isinstance(value, list) else value

    return {key: value if key == "step" else cast(value) for key, value in entries.items()}


def _wants_step_on_device(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
    """Whether ``step`` lies on the parameter's device, for capturable and fused kernels."""
    for group in optimizer.param_groups:
        if any(one is parameter for one in group["params"]):
            return bool(group.get("capturable") or group.get("fused"))
    return False


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Plain attributes, such as counters, of optimizers that are not torch's."""
    if str(type(optimizer).__module__).startswith("torch."):
        return {}
    return {
        name: value
        for name, value in vars(optimizer).items()
        if name not in _OWN_ATTRIBUTES
        and not name.startswith("_")
        and type(value) in (bool, int, float, str)
    }
