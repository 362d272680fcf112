"""Models whose own parameters are in half precision: to FP32 and back, in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from supervisor.training_state.tensors import outside_autograd

HALF = (torch.float16, torch.bfloat16)


def half_tensors(model: nn.Module) -> dict[str, torch.dtype]:
    """Returns name → dtype of the parameters and buffers that are FP16 or BF16."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.dtype for name, tensor in named if tensor.dtype in HALF}


def to_fp32(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    """Converts half-precision parameters, buffers, gradients and optimizer state to FP32.

    Parameters stay the same objects, so optimizers and the user's variables keep them.
    """
    were_half = {id(p): p.dtype for p in model.parameters() if p.dtype in HALF}
    with outside_autograd():
        convert: Any = model._apply
        convert(to_float)
        _convert_state(optimizers, were_half, torch.float32)


def back_to_half(
    model: nn.Module,
    dtypes: Mapping[str, torch.dtype],
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> None:
    """Converts what `to_fp32` converted back to the `dtypes` that it had."""
    named: dict[int, torch.dtype] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in dtypes:
            named[id(tensor)] = dtypes[name]
    parameters = {id(p): torch.float32 for p in model.parameters() if id(p) in named}
    targets = {id(p): named[id(p)] for p in model.parameters() if id(p) in named}
    with outside_autograd():
        _apply_by_id(model, named)
        for key, dtype in targets.items():
            _convert_state(optimizers, {key: parameters[key]}, dtype)


def cast_inputs(model: nn.Module) -> list[RemovableHandle]:
    """Lets every submodule that owns parameters, and the root, take half inputs as FP32."""
    return [
        part.register_forward_pre_hook(_cast_call, with_kwargs=True)
        for part in model.modules()
        if part is model or next(nn.Module.named_parameters(part, recurse=False), None) is not None
    ]


def to_float(tensor: torch.Tensor) -> torch.Tensor:
    """Returns FP16 and BF16 as FP32, everything else as it is."""
    return tensor.float() if tensor.dtype in HALF else tensor


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Applies `change` to the tensors of nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(map_tensors(item, change) for item in value)
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value


def _cast_call(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return map_tensors(args, to_float), map_tensors(kwargs, to_float)


def _apply_by_id(model: nn.Module, dtypes: Mapping[int, torch.dtype]) -> None:
    for part in model.modules():
        for parameter in part.parameters(recurse=False):
            dtype = dtypes.get(id(parameter))
            if dtype is not None:
                gradient = parameter.grad
                parameter.grad = None
                parameter.data = parameter.data.to(dtype)
                if gradient is not None:
                    parameter.grad = gradient.to(dtype)
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and id(buffer) in dtypes:
                part._buffers[name] = buffer.to(dtypes[id(buffer)])


def _convert_state(
    optimizers: Mapping[str, torch.optim.Optimizer],
    parameters: Mapping[int, torch.dtype],
    dtype: torch.dtype,
) -> None:
    """Converts state tensors that have the dtype their parameter had."""
    for optimizer in optimizers.values():
        for parameter, entries in optimizer.state.items():
            before = parameters.get(id(parameter))
            if before is None:
                continue
            for key, value in entries.items():
                if key != "step":
                    entries[key] = _cast(value, before, dtype)


def _cast(value: Any, before: torch.dtype, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype == before else value
    if isinstance(value, list):
        return [_cast(item, before, dtype) for item in value]
    return value
