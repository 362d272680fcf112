"""Updates that low-precision weights round away."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer

from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import owners, some
from supervisor.worker.mistakes.evidence.own_draw import PLAIN
from supervisor.worker.mistakes.evidence.places import ScriptLine, calls, function_at, told

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
    in_a_row = True

    def __init__(self) -> None:
        self._of: list[tuple[torch.Tensor, dict[str, Any], torch.Tensor]] = []
        self._wanted: list[torch.Tensor] = []
        self._count = 0

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main:
            return None
        if not self._of:
            found = [
                (each, group, _few(each).clone())
                for group in optimizer.param_groups
                for each in group["params"]
                if each.dtype in (torch.bfloat16, torch.float16)
                and each.grad is not None
                and type(each) in PLAIN
            ]
            self._of = found[:: max(1, len(found) // TENSORS)][:TENSORS]
            self.is_over = not found or type(optimizer) not in (Adam, AdamW)
            return None
        changes = [_intended(optimizer.state.get(e) or {}, group) for e, group, _ in self._of]
        known = [change for change in changes if change is not None]
        self._wanted = list(map(torch.add, self._wanted, known)) if self._count else known
        self._count += 1
        self.is_over = self._count >= UPDATES or len(known) < len(changes)
        return self._judge(seen, optimizer) if self._count == UPDATES else None

    def _judge(self, seen: SeenSoFar, optimizer: Optimizer) -> Proof | None:
        lost = due = 0
        still: list[int] = []
        for (each, _, before), wanted in zip(self._of, self._wanted, strict=True):
            exact = before.float()
            unit = torch.finfo(each.dtype).eps * torch.exp2(torch.floor(torch.log2(exact.abs())))
            is_due = (wanted.abs() > unit) & (exact != 0)
            is_lost = is_due & (_few(each) == before)
            lost, due = lost + int(is_lost.sum()), due + int(is_due.sum())
            still += [id(each)] * bool(is_lost.any())
        if due < 20 or lost < 0.5 * due:
            return None
        known, kind = owners(seen.registry), str(self._of[0][0].dtype).removeprefix("torch.")
        names = [known[key].name for key in still if key in known]
        return Proof(
            fact=f"updates are rounded away: of the {kind} elements that {UPDATES} updates were to "
            f"move by more than a unit in the last place, {lost / due:.0%} have kept their bits: "
            f"{some(names)}",
            where=_cast_before(seen.place_of(optimizer)),
            names=names,
            mend=f"keep the weights in float32, compute under torch.autocast(dtype=torch.{kind})",
        )


def _cast_before(place: ScriptLine | None) -> str:
    """Where the model was cast, in the function that makes the optimizer; else that line."""
    if place is None:
        return ""
    function = function_at(place.file, place.line)
    casts = [call for method in ("to", "bfloat16", "half") for call in calls(function, method)]
    lines = [call.lineno for call in casts if call.lineno < place.line]
    return told(place.file, max(lines)) if lines else str(place)


def _few(each: torch.Tensor) -> torch.Tensor:
    return each.detach().flatten()[:ELEMENTS]


def _intended(state: dict[str, Any], group: dict[str, Any]) -> torch.Tensor | None:
    """What the last update was to change, from its moments (Kingma & Ba 2015, algorithm 1)."""
    if "exp_avg" not in state or group["amsgrad"]:
        return None
    count, (first, second) = state["step"], group["betas"]
    mean = _few(state["exp_avg"]).float() / (1 - first**count)
    square = _few(state["exp_avg_sq"]).float() / (1 - second**count)
    change: torch.Tensor = mean / (square.sqrt() + group["eps"]) * -group["lr"]
    return change
