"""Gradients that are cleared before an update has used them."""

from __future__ import annotations

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph
from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import (
    ScriptLine,
    call_around,
    names_in,
    script_place,
)
from supervisor.worker.mistakes.evidence.watched_weight import watched_weight

UPDATES = 10


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
            self._of = watched_weight(optimizers[0]) if is_torchs == [True] else None
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
        if self._in_a_row < UPDATES or self._place is None:
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
    held = [each for group in optimizer.param_groups for each in group["params"]]
    return (
        len(seen.registry.optimizers) != 1
        or any(part._backward_hooks or part._backward_pre_hooks for part in modules)
        or any(each._backward_hooks or each._post_accumulate_grad_hooks for each in held)
        or names_in(place, "grad")
    )
