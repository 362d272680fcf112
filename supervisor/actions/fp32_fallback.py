"""Computes in single precision for a while."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.half_precision import back_to_half, cast_inputs, half_tensors, to_fp32
from supervisor.by_identity import ByIdentity
from supervisor.records import ActionResult


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
