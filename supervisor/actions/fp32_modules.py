"""Computes fragile layers in single precision, the rest as the script has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.loss import _Loss
from torch.utils.hooks import RemovableHandle

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.half_precision import HALF, map_tensors, to_float
from supervisor.by_identity import IdentitySet
from supervisor.records import ActionResult

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
