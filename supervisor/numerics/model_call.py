"""Calls a model with a sample as the user would, and sums up errors in one line."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.training_state.model_state import module_attributes, put_back_attributes

LONGEST_MESSAGE = 300


def call_model(model: nn.Module, sample: Any) -> Any:
    """Returns the model's output.

    If `forward` takes them so, a tuple or list becomes positional arguments and a dict keyword
    arguments; otherwise the sample is the only argument.
    """
    if isinstance(sample, (list, tuple)) and _takes(model.forward, sample, {}):
        return model(*sample)
    if isinstance(sample, Mapping) and _takes(model.forward, (), sample):
        return model(**sample)
    return model(sample)


def how_to_call(model: nn.Module, sample: Any) -> str:
    """Returns advice about a sample that the model does not accept."""
    try:
        wanted = str(inspect.signature(model.forward))
    except (TypeError, ValueError):  # compiled functions need not have one
        wanted = "(...)"
    if isinstance(sample, Mapping) and not _takes(model.forward, (), sample):
        keys = ", ".join(map(str, sample))
        return f"its keys ({keys}) do not fit forward{wanted}: rename them"
    if isinstance(sample, (list, tuple)) and not _takes(model.forward, sample, {}):
        return f"its {len(sample)} elements do not fit forward{wanted}: give one for each argument"
    return "give one input as the model's forward takes it"


def one_line(error: BaseException) -> str:
    """Returns ``RuntimeError: mat1 and mat2 ...`` on one line of bounded length."""
    message = " ".join(str(error).split())
    if len(message) > LONGEST_MESSAGE:
        message = message[:LONGEST_MESSAGE].rstrip() + " ..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def bare_model(model: Any) -> nn.Module:
    """Returns the module; for a compiled one the original, whose layers can be watched.

    Raises:
        UsageError: it is no `torch.nn.Module`, or has no values (device ``meta``).
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"model: {type(model).__name__} is not a torch.nn.Module: give the module itself"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError(
            "model: its parameters are on the device meta and have no values: "
            "load the weights first, or use model.to_empty and initialise them"
        )
    original = model._modules.get("_orig_mod")  # a mock answers to any name
    return original if isinstance(original, nn.Module) else model


def watched_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Like `named_modules`, without compiled parts, which run no hooks.

    Raises:
        UsageError: the model as a whole is compiled by TorchScript.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "model: TorchScript hides its layers: give the module from before torch.jit.script"
        )
    for path, module in model.named_modules():
        if not isinstance(module, torch.jit.ScriptModule):
            yield path, module


def _takes(
    function: Callable[..., Any], arguments: list[Any] | tuple[Any, ...], named: Mapping[Any, Any]
) -> bool:
    if not all(isinstance(name, str) for name in named):
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled functions need not have one
        return True
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        return False
    return True


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each tensor of `value` with its path: ``""``, ``[0]``, ``.logits``, ``.past[1]``."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            step = f".{key}" if isinstance(key, str) else f"[{key!r}]"
            yield from tensors_in(item, path + step)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{path}[{index}]")
    elif _is_record(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None), f"{path}.{field.name}")


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns `value` with every tensor changed; containers are copied, other things shared."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(item, change) for key, item in value.items()}
        return changed if type(value) is dict else _filled(value, changed)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    if _is_record(value):
        record = copy.copy(value)
        for field in dataclasses.fields(value):
            item = map_tensors(getattr(value, field.name, None), change)
            object.__setattr__(record, field.name, item)
        return record
    return value


def is_float(tensor: torch.Tensor) -> bool:
    """Whether it is dense and of a real or complex floating type."""
    dense = tensor.layout == torch.strided and not tensor.is_nested
    return dense and (tensor.is_floating_point() or tensor.is_complex())


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """Returns `value` with real floating tensors in `dtype`; all tensors are detached copies."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        apart = tensor.detach().clone()
        return apart.to(dtype) if tensor.is_floating_point() else apart

    return map_tensors(value, change)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _filled(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same class with other values, if the class allows that."""
    try:
        filled = copy.copy(mapping)
        for key, item in items.items():
            filled[key] = item  # type: ignore[index]
        return filled
    except TypeError:  # read-only mappings
        return items


def copy_of(model: nn.Module) -> nn.Module:
    """Returns a deep copy; results of earlier passes in its attributes are detached.

    Raises:
        UsageError: a class in it cannot be copied.
    """
    # torch refuses to copy tensors that hang on a graph: what is in the memo is not copied.
    results: dict[int, torch.Tensor] = {
        id(tensor): tensor.detach().clone()
        for module in model.modules()
        for _, tensor in tensors_in(vars(module))
        if not tensor.is_leaf
    }
    try:
        return copy.deepcopy(model, dict(results))
    except Exception as error:  # whatever a user's class raises on copying
        raise UsageError(
            f"model: cannot be copied ({one_line(error)}): keep what cannot be copied out of its "
            "attributes"
        ) from error


@contextmanager
def state_kept(model: nn.Module) -> Iterator[None]:
    """Restores buffers, attributes of modules, and the random state."""
    attributes = module_attributes(model)
    tensors = [
        (vars(module), name, value, value._version, value.detach().clone())
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)):
        try:
            yield
        finally:
            put_back_attributes(model, attributes)
            with torch.no_grad():
                for owner, name, value, version, kept in tensors:
                    owner[name] = value
                    if value._version != version:
                        value.copy_(kept)
                for buffer, kept in buffers:
                    buffer.copy_(kept)
