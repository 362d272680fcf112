"""Computes in FP32: single modules, the whole run, or weights that are in half precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.loss import _Loss
from torch.utils.hooks import RemovableHandle

from supervisor.actions.base import Action, ActionContext
from supervisor.by_identity import ByIdentity, IdentitySet
from supervisor.records import ActionResult
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


FRAGILE = (
    _NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    nn.Softmax,
    nn.LogSoftmax,
    nn.Softmin,
    _Loss,
)
"""Sums over many small or few large values: normalisation, softmax, losses."""


class Fp32Modules(Action):
    """Runs fragile modules with autocast off and on FP32 inputs; outputs are cast back, losses not.

    Fragile are normalisations, softmax, losses, and modules whose class name says that they hold
    positional code. Modules that own half-precision parameters are left to `fp32_fallback`.
    """

    name = "fp32_modules"
    moment = "boundary"
    cost = "slightly slower steps"

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        """Takes further `names` of submodules to protect, such as those that `diff` found."""
        self._names = names
        self._protected: IdentitySet[nn.Module] = IdentitySet()
        self._handles: list[RemovableHandle] = []

    def precondition(self, context: ActionContext) -> str | None:
        if context.uses_autocast is False:
            return "the run does not use autocast"
        return None if self._candidates(context) else "there is no fragile module to protect"

    def apply(self, context: ActionContext) -> ActionResult:
        names = []
        for name, module in self._candidates(context):
            guard = _Guard()
            self._handles += [
                module.register_forward_pre_hook(guard.enter, with_kwargs=True),
                module.register_forward_hook(guard.leave, always_call=True),
            ]
            self._protected.add(module)
            names.append(name)
        return self.done(f"{len(names)} fragile modules compute in FP32", modules=names)

    def undo(self, context: ActionContext) -> ActionResult:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._protected.clear()
        return self.done("every module in the script's own precision again")

    def _candidates(self, context: ActionContext) -> list[tuple[str, nn.Module]]:
        return [
            (name, module)
            for model in context.registry.models.values()
            for name, module in model.named_modules()
            if (isinstance(module, FRAGILE) or name in self._names or _is_positional(module))
            and module not in self._protected
            and not any(parameter.dtype in HALF for parameter in module.parameters())
        ]


class _Guard:
    """The state of one module's hooks between entry and exit; entries may nest."""

    def __init__(self) -> None:
        self._open: list[tuple[Any, torch.dtype | None]] = []

    def enter(self, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        seen: list[torch.Tensor] = []
        map_tensors((args, kwargs), seen.append)
        device = seen[0].device.type if seen else "cpu"
        half = next((tensor.dtype for tensor in seen if tensor.dtype in HALF), None)
        region = torch.autocast(device, enabled=False)
        region.__enter__()
        self._open.append((region, half))
        args, kwargs = map_tensors((args, kwargs), to_float)
        return args, kwargs

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        region, half = self._open.pop()
        region.__exit__(None, None, None)
        if half is None or isinstance(module, _Loss):
            return None
        return map_tensors(output, lambda t: t.to(half) if t.dtype == torch.float32 else t)


def _is_positional(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "rotary" in name or "positional" in name


class Fp32Fallback(Action):
    """Disables autocast and converts half-precision models; a GradScaler goes on scaling.

    Autocast is the worker's: its hooks read `Controls.fp32`. A model whose parameters are
    FP16 or BF16 is converted in place, its optimizer state with it; half inputs are cast at the
    door of every submodule that owns parameters. A new process that goes on under the fallback
    applies it again before the state is restored, so that no digit is lost.
    """

    name = "fp32_fallback"
    moment = "boundary"
    cost = "slower steps and more memory until it is taken back"

    def __init__(self) -> None:
        self._converted: ByIdentity[
            nn.Module, tuple[dict[str, torch.dtype], list[RemovableHandle]]
        ] = ByIdentity()

    def precondition(self, context: ActionContext) -> str | None:
        is_half = any(half_tensors(model) for model in context.registry.models.values())
        if context.controls.fp32 and not is_half:
            return "it is already switched on"
        if not is_half and not context.registry.scalers and context.uses_autocast is False:
            return "the run already computes in FP32"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        context.controls.fp32 = True
        converted = []
        for name, model in context.registry.models.items():
            dtypes = half_tensors(model)
            if dtypes:
                to_fp32(model, context.registry.optimizers)
                self._converted[model] = (dtypes, cast_inputs(model))
                converted.append(name)
        what = f", {', '.join(converted)} converted" if converted else ""
        return self.done(f"autocast is off{what}", converted=converted)

    def undo(self, context: ActionContext) -> ActionResult:
        context.controls.fp32 = False
        for model, (dtypes, handles) in self._converted.items():
            for handle in handles:
                handle.remove()
            back_to_half(model, dtypes, context.registry.optimizers)
        self._converted.clear()
        return self.done("the script's own precision again")
