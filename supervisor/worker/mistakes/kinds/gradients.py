"""Gradients: never cleared, cleared before they are used, never there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph
from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import is_compiled, owners, some
from supervisor.worker.mistakes.evidence.own_draw import held_by, is_own_draw, own_parameters
from supervisor.worker.mistakes.evidence.places import (
    ScriptLine,
    call_around,
    line_without_gradients,
    names_in,
    script_place,
)

NOT_CLEARED, CLEARED = 20, 10
"""Updates in a row."""
LARGE = 8_192
"""Elements of a gradient that is too large to be copied at each of these steps."""


class NeverCleared(Mistake):
    """No ``zero_grad``: each update has the gradients of all batches before it.

    Proof: for 20 updates of the main optimizer in a row, each backward between two of them began
    with the very bits that the update, or the backward before it, had left, not all zero, and
    changed them.

    Spares: clearing in any way and at any time between two updates (``p.grad = None``,
    ``p.grad.data.zero_()``), accumulation, GANs whose second loss adds to the first's gradients,
    SAM, LBFGS, momentum that the script keeps in the gradients (it changes their bits), FP32
    masters (no backward adds to theirs).

    Sources: pytorch/pytorch#47175, wenet-e2e/wekws#73, meta-pytorch/torchforge#71.
    """

    kind = "gradients_never_cleared"
    in_a_row = True
    walks = False

    def __init__(self) -> None:
        self._of: torch.Tensor | None = None
        self._bits: torch.Tensor | None = None
        self._backwards = self._in_a_row = 0

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        if self._of is None:
            return None
        grad, bits = self._of.grad, self._bits
        self._backwards += 1
        if grad is None or bits is None or not (torch.equal(grad, bits) and bool(grad.any())):
            self.is_over = True
        elif self._in_a_row == NOT_CLEARED - 1:
            return Proof(
                fact=f"gradients of earlier steps are never cleared: in {NOT_CLEARED} updates each "
                "backward added to what all those before it had left",
                where=script_place(),
                mend="optimizer.zero_grad() before loss.backward()",
            )
        return None

    def backward_ended(self, seen: SeenSoFar) -> None:
        if self._of is not None:
            grad = self._of.grad
            if grad is None or self._bits is None or torch.equal(grad, self._bits):
                self.is_over = True  # no backward adds to it: the script writes it, as of masters
        self._note()

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main:
            return None
        if self._of is None:
            self._of = _watched_weight(optimizer)
            self.is_over = self._of is None
        elif not self._backwards:
            self.is_over = True  # a closure's, or gradients that the script wrote itself
        else:
            self._in_a_row += 1
        self._backwards = 0
        self._note()
        return None

    def _note(self) -> None:
        grad = None if self._of is None else self._of.grad
        self._bits = None if grad is None or self.is_over else grad.detach().clone()


class ClearedEarly(Mistake):
    """``zero_grad()`` between ``backward()`` and ``step()``, or within an accumulation.

    Proof: for 10 updates in a row of the run's only optimizer, a class of torch's, the gradients
    that a backward left were gone before the next backward, or before the update itself, while no
    bit of the weights had changed; all those backwards were called at one line. Nobody has read
    them in between: no file of the script names ``.grad``, and no hook is at a tensor or module.

    Spares: adversarial inputs, SAM, gradient surgery and per-sample gradients (their scripts read
    ``.grad``), a GAN (two optimizers), a second loss at a line of its own, batches that are left
    out now and then, gradients that are used within the backward (hooks), updates by hand.

    Sources: discuss.pytorch.org/t/zero-grad-optimizer-or-net/1887,
    stackoverflow.com/questions/48001598.
    """

    kind = "gradients_cleared_early"
    in_a_row = True
    walks = False

    def __init__(self) -> None:
        self._of: torch.Tensor | None = None
        self._weight = torch.zeros(0)
        self._lines: set[tuple[tuple[str, int], ...]] = set()
        self._place: ScriptLine | None = None
        self._backwards = self._wiped = self._in_a_row = self._lost = 0
        self._is_unused = False

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        self._place = script_place()
        if self._place is None or seen.has_tensor_hooks():
            self.is_over = True
        else:
            self._lines.add(self._place.around)
            if self._backwards:
                self._wiped += 1
                self.is_over = not self._is_wiped()  # they add up: an accumulation
        return None

    def backward_ended(self, seen: SeenSoFar) -> None:
        if self._of is None:
            optimizers = list(seen.registry.optimizers.values())
            is_torchs = [type(each).__module__.startswith("torch.optim") for each in optimizers]
            self._of = _watched_weight(optimizers[0]) if is_torchs == [True] else None
        grad = None if self._of is None else self._of.grad
        if self._of is None or grad is None or len(self._lines) > 1 or not bool(grad.any()):
            self.is_over = True
            return
        self._backwards += 1
        self._weight = self._of.detach().clone()

    def before_update(self, seen: SeenSoFar, optimizer: Optimizer) -> None:
        self._is_unused = self._is_wiped()
        is_healthy = not self._backwards or not (self._is_unused or self._wiped)
        if is_healthy or (self._of is not None and not torch.equal(self._of, self._weight)):
            self.is_over = True

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        lost, made = self._wiped + self._is_unused, self._backwards
        self._backwards = self._wiped = 0
        self._in_a_row += 1
        if self._in_a_row < CLEARED or self._place is None:
            return None
        self.is_over = True
        if _is_used_otherwise(seen, optimizer, self._place):
            return None
        what = "all" if lost == made else f"{lost} of {made}"
        return Proof(
            fact=f"gradients are cleared before they are used: {what} backwards of each update "
            "have left nothing when the optimizer steps",
            where=call_around(self._place, "zero_grad"),
            mend="optimizer.step(), then optimizer.zero_grad(), once for each update",
        )

    def _is_wiped(self) -> bool:
        if self._of is None:
            return False
        grad = self._of.grad
        return (grad is None or not bool(grad.any())) and torch.equal(self._of, self._weight)


def _is_used_otherwise(seen: SeenSoFar, optimizer: Optimizer, place: ScriptLine) -> bool:
    modules = [part for model in seen.registry.models.values() for part in Module.modules(model)]
    held = held_by(optimizer)
    return (
        len(seen.registry.optimizers) != 1
        or any(part._backward_hooks or part._backward_pre_hooks for part in modules)
        or any(each._backward_hooks or each._post_accumulate_grad_hooks for each in held)
        or names_in(place, "grad")
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
            held = held_by(optimizer)
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


def _watched_weight(optimizer: Optimizer) -> torch.Tensor | None:
    """The largest one that is not too large, and has a plain gradient; None without one."""
    found = [
        each
        for each in held_by(optimizer)
        if each.numel() <= LARGE
        and type(each.grad) is torch.Tensor
        and each.grad.layout is torch.strided
    ]
    return max(found, key=torch.Tensor.numel, default=None)
