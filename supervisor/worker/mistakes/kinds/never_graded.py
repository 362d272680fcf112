"""Parameters that the optimizer holds and no gradient reaches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import is_compiled, owners, some
from supervisor.worker.mistakes.evidence.own_draw import is_own_draw, own_parameters
from supervisor.worker.mistakes.evidence.places import (
    ScriptLine,
    line_without_gradients,
    script_place,
)

FIRST, LAST, LOOKS = 3, 20, 3


class NeverGraded(Mistake):
    """An encoder under ``no_grad``, left over from a frozen version.

    Proof: a module of torch, all of it in the optimizer, holds its constructor's own draw, had no
    gradient in 20 updates, and ran with gradients off in each looked-at training forward, which
    ran with gradients on.

    Spares: heads not used yet (they do not run), frozen ones (``requires_grad`` off), loaded or
    copied ones (frozen backbones, mean teachers, momentum encoders), all that ran with gradients
    on (a zero start of low-rank factors, outputs that no loss uses).

    Sources: queenie88/A-GCN#4, kohya-ss/sd-scripts#323.
    """

    kind = "never_a_gradient"

    def __init__(self) -> None:
        self._suspects: list[nn.Module] | None = None
        self._hooked: list[tuple[nn.Module, int]] = []
        self._ran: dict[int, bool] = {}
        self._place: ScriptLine | None = None
        self._looks = 0

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        is_training = call.with_graph and call.module.training
        if not self._suspects or not is_training or self._looks >= LOOKS:
            return None
        if is_compiled(call.module):
            self.is_over = True
            return None
        self._looks += 1
        for module in self._suspects:
            key = -1 - len(self._hooked)  # torch's own are from 0
            module._forward_pre_hooks[key] = self._runs
            self._hooked.append((module, key))
        return None

    def _runs(self, module: nn.Module, args: Any) -> None:
        is_off = not torch.is_grad_enabled()
        self._ran[id(module)] = self._ran.get(id(module), True) and is_off
        if is_off and self._place is None:
            self._place = script_place()

    def forward_ended(self) -> None:
        for module, key in self._hooked:
            module._forward_pre_hooks.pop(key, None)
        self._hooked.clear()

    def before_update(self, seen: SeenSoFar, optimizer: Optimizer) -> None:
        if self._suspects is None and seen.updates == FIRST:
            held = [each for group in optimizer.param_groups for each in group["params"]]
            mine = {id(each) for each in held if each.requires_grad and each.grad is None}
            modules = [each.module for each in owners(seen.registry).values()] if mine else []
            self._suspects = [
                module
                for module in {id(each): each for each in modules}.values()
                if {id(each) for each in own_parameters(module)} <= mine and is_own_draw(module)
            ]
            self.is_over = not self._suspects

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not self._suspects or seen.updates < LAST:
            return None
        self.is_over = True
        proved = {
            id(module)
            for module in self._suspects
            if self._ran.get(id(module))
            and is_own_draw(module)
            and all(each.grad is None for each in own_parameters(module))
        }
        if not proved or self._looks < LOOKS:
            return None
        names = [o.name for o in owners(seen.registry).values() if id(o.module) in proved]
        return Proof(
            fact=f"{len(names)} tensors that the optimizer holds never got a gradient in "
            f"{seen.updates} updates, because their modules run under no_grad: {some(names)}",
            where=line_without_gradients(self._place),
            names=names,
            mend="run them with gradients, or freeze them: module.requires_grad_(False)",
        )
