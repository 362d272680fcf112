"""Gradients that are never cleared between updates."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph
from supervisor.worker.mistakes.evidence.places import ScriptLine, script_place
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar

UPDATES = 20
LARGE = 8_192
"""Elements of a gradient that is too large to be copied at each of these updates."""


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

    def __init__(self) -> None:
        self._of: torch.Tensor | None = None
        self._bits: torch.Tensor | None = None
        self._backwards = self._in_a_row = 0
        self._place: ScriptLine | None = None

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        if self._of is None:
            return None
        grad = self._of.grad
        if grad is None or self._bits is None or not _same(grad, self._bits):
            self.is_over = True
        self._backwards += 1
        if self._in_a_row >= UPDATES - 1:
            self._place = script_place()
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
            self._of = _small_one(optimizer)
            self.is_over = self._of is None
        elif not self._backwards:
            self.is_over = True  # a closure's, or gradients that the script wrote itself
        else:
            self._in_a_row += 1
        self._backwards = 0
        self._note()
        if self.is_over or self._in_a_row < UPDATES:
            return None
        return Proof(
            fact=(
                f"gradients of earlier steps are never cleared: in {UPDATES} updates each backward "
                "added to what all those before it had left"
            ),
            where=str(self._place) if self._place else "",
            mend="optimizer.zero_grad() before loss.backward()",
        )

    def _note(self) -> None:
        grad = None if self._of is None else self._of.grad
        self._bits = None if grad is None or self.is_over else grad.detach().clone()

    def interrupted(self) -> None:
        self.is_over = True


def _small_one(optimizer: Optimizer) -> torch.Tensor | None:
    found = [
        each
        for group in optimizer.param_groups
        for each in group["params"]
        if each.numel() <= LARGE
        and type(each.grad) is torch.Tensor
        and each.grad.layout is torch.strided
    ]
    return max(found, key=torch.Tensor.numel, default=None)


def _same(grad: torch.Tensor, bits: torch.Tensor) -> bool:
    return grad.shape == bits.shape and torch.equal(grad, bits) and bool(grad.any())
