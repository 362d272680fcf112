"""Gradients that are never cleared between updates."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.loss_graph import LossGraph
from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.places import script_place
from supervisor.worker.mistakes.evidence.watched_weight import watched_weight

UPDATES = 20


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
        elif self._in_a_row == UPDATES - 1:
            return Proof(
                fact=f"gradients of earlier steps are never cleared: in {UPDATES} updates each "
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
            self._of = watched_weight(optimizer)
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
