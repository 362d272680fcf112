"""An optimizer that makes no more updates."""

from __future__ import annotations

import torch
from torch.optim import LBFGS, Optimizer

from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.own_draw import PLAIN

IN_A_ROW, EVERY = 40, 8
TENSORS, ELEMENTS = 8, 1024


class StoppedUpdates(Mistake):
    """``step()`` is called and does nothing: a compiled or patched optimizer holds on to old state.

    Proof: the first two updates wrote to each FP32 weight looked at; then 40 in a row wrote to
    none (their versions), and left their bits (the first elements), though at each eighth of these
    a plain gradient step at the optimizer's rate would have changed bits of each.

    Spares: accumulation within an optimizer (its first two calls do not both write), a rate of
    zero, a minimum that is reached, line searches, updates that were left out, optimizers that
    write past torch's versions, weights that are not FP32.

    Sources: pytorch/pytorch#115607.
    """

    kind = "optimizer_stopped"
    in_a_row = True

    def __init__(self) -> None:
        self._of: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._bits: list[torch.Tensor] = []
        self._still = 0

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main:
            return None
        if seen.updates == 1:
            held = [each for group in optimizer.param_groups for each in group["params"]]
            graded = [each for each in held if each.grad is not None]
            self._of = graded[:: max(1, len(graded) // TENSORS)][:TENSORS]
        versions, earlier = [each._version for each in self._of], self._versions
        self._versions = versions
        if seen.updates == 1:
            is_plain = all(e.dtype is torch.float32 and type(e) in PLAIN for e in self._of)
            self.is_over = not self._of or not is_plain or isinstance(optimizer, LBFGS)
        elif seen.updates == 2:
            self.is_over = any(map(int.__eq__, versions, earlier))
        elif versions != earlier:
            self._still = 0
            self.is_over = seen.updates > 100 - IN_A_ROW
        else:
            return self._stands_still(seen, optimizer)
        return None

    def _stands_still(self, seen: SeenSoFar, optimizer: Optimizer) -> Proof | None:
        if not self._still:
            self._bits = [_few(each).clone() for each in self._of]
        self._still += 1
        if self._still % EVERY:
            return None
        rates = {id(p): float(g.get("lr", 0)) for g in optimizer.param_groups for p in g["params"]}
        self.is_over = not all(_is_due(each, rates.get(id(each), 0.0)) for each in self._of)
        if self.is_over or self._still < IN_A_ROW:
            return None
        self.is_over = True
        if not all(map(torch.equal, map(_few, self._of), self._bits)):
            return None
        return Proof(
            fact=f"the optimizer makes no more updates: its last {IN_A_ROW} steps have written to "
            "no weight, though there were gradients and a rate",
            where=seen.place_of(optimizer),
            mend="make the optimizer anew, and look at what replaces its step(): a compiled or "
            "patched one keeps what it saw first",
        )


def _few(each: torch.Tensor) -> torch.Tensor:
    return each.detach().flatten()[:ELEMENTS]


def _is_due(each: torch.Tensor, rate: float) -> bool:
    if type(each.grad) is not torch.Tensor or each.grad.layout is not torch.strided:
        return False
    now = _few(each)
    return bool((now - rate * _few(each.grad) != now).any())
