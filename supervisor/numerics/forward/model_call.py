"""Calls a model with a sample as the user would, and sums up errors in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from supervisor.errors import UsageError

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
