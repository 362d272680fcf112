"""Updates that low-precision weights round away."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer

from supervisor.worker.mistakes.evidence.names import owners, some
from supervisor.worker.mistakes.evidence.own_draw import PLAIN
from supervisor.worker.mistakes.evidence.places import ScriptLine, calls, function_at, told
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar

UPDATES = 40
ELEMENTS, TENSORS = 256, 16
"""Looked at: the first of each weight, and so many weights, as far apart as can be."""


class RoundedAway(Mistake):
    """Weights in BF16 or FP16 with a small rate: nearly every update is below half a unit in the
    last place.

    Proof: the weights are in torch's own Adam or AdamW themselves; over 40 updates in a row the
    sum of what each was to change, computed from the optimizer's own moments, exceeds a unit in
    the last place, and most of those elements have kept their bits.

    Spares: FP32 masters (they are in the optimizer), Kahan summation and stochastic rounding
    (classes of their own), rates that are meant to change nothing (the intended sum is too small).

    Sources: meta-pytorch/torchtune#2254, pytorch/ao#1124, pytorch/pytorch#120376.
    """

    kind = "updates_rounded_away"

    def __init__(self) -> None:
        self._of: list[torch.Tensor] | None = None
        self._groups: list[dict[str, Any]] = []
        self._before: list[torch.Tensor] = []
        self._wanted: list[torch.Tensor] = []
        self._count = 0

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main:
            return None
        if type(optimizer) not in (Adam, AdamW):
            self.is_over = True
            return None
        if self._of is None:
            found = [
                (each, group)
                for group in optimizer.param_groups
                for each in group["params"]
                if each.dtype in (torch.bfloat16, torch.float16)
                and each.grad is not None
                and type(each) in PLAIN
            ]
            found = found[:: max(1, len(found) // TENSORS)][:TENSORS]
            self._of, self._groups = [each for each, _ in found], [group for _, group in found]
            self._before = [_few(each).clone() for each in self._of]
            self._wanted = [torch.zeros(0)] * len(self._of)
            self.is_over = not found
            return None
        for place, (each, group) in enumerate(zip(self._of, self._groups, strict=True)):
            change = _intended(optimizer.state.get(each) or {}, group, each)
            if change is None:
                self.is_over = True
                return None
            self._wanted[place] = change if not self._count else self._wanted[place] + change
        self._count += 1
        self.is_over = self._count >= UPDATES
        return self._judge(seen, optimizer) if self.is_over else None

    def _judge(self, seen: SeenSoFar, optimizer: Optimizer) -> Proof | None:
        of = self._of or []
        lost = due = 0
        still: list[int] = []
        for each, before, wanted in zip(of, self._before, self._wanted, strict=True):
            exact = before.float()
            step = torch.finfo(each.dtype).eps * torch.exp2(torch.floor(torch.log2(exact.abs())))
            is_due = (wanted.abs() > step) & (exact != 0)
            is_lost = is_due & (_few(each) == before)
            lost, due = lost + int(is_lost.sum()), due + int(is_due.sum())
            if is_lost.any():
                still.append(id(each))
        if due < 20 or lost < 0.5 * due:
            return None
        known = owners(seen.registry)
        names = [known[key].name for key in still if key in known]
        place = seen.place_of(optimizer)
        kind = str(of[0].dtype).removeprefix("torch.")
        return Proof(
            fact=(
                f"updates are rounded away: of the {kind} elements that {UPDATES} updates were to "
                f"move by more than a unit in the last place, {lost / due:.0%} have kept their "
                f"bits: {some(names)}"
            ),
            where=_cast_before(place) if place else "",
            names=tuple(names),
            mend=f"keep the weights in float32, compute under torch.autocast(dtype={of[0].dtype})",
        )

    def interrupted(self) -> None:
        self.is_over = True


def _cast_before(place: ScriptLine) -> str:
    """Where the model was cast, in the function that makes the optimizer; else that line."""
    function = function_at(place.file, place.line)
    lines = [
        call.lineno
        for method in ("to", "bfloat16", "half")
        for call in (calls(function, method) if function else ())
        if call.lineno < place.line
    ]
    return told(place.file, max(lines)) if lines else str(place)


def _few(each: torch.Tensor) -> torch.Tensor:
    return each.detach().flatten()[:ELEMENTS]


def _intended(
    state: dict[str, Any], group: dict[str, Any], each: torch.Tensor
) -> torch.Tensor | None:
    """What the last update was to change, from its moments (Kingma & Ba 2015, algorithm 1)."""
    if "exp_avg" not in state or group["amsgrad"]:
        return None
    count, (first, second) = float(state["step"]), group["betas"]
    mean = _few(state["exp_avg"]).float() / (1 - first**count)
    square = _few(state["exp_avg_sq"]).float() / (1 - second**count)
    change: torch.Tensor = mean / (square.sqrt() + group["eps"]) * -float(group["lr"])
    return change
