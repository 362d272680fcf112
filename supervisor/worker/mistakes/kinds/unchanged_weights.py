"""Updates that change nothing in FP32."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.own_draw import PLAIN
from supervisor.worker.mistakes.evidence.places import (
    ScriptLine,
    calls,
    function_at,
    script_place,
    told,
)

IN_A_ROW = 10
AT_ZERO = 20
"""The same with a rate of zero, and half of all updates so far: schedules end there."""
ELEMENTS = 65_536
"""Of each weight, the first: no copy of a large one is made."""
FALLEN = 1e-3
"""Of the first rate. A rate that is small from the start is the script's choice."""


class UnchangedWeights(Mistake):
    """A schedule meant for epochs that is stepped at every batch: the rate is gone.

    Proof: in 10 updates of the main optimizer in a row no bit of any FP32 weight has changed (the
    first elements of large ones), though there were gradients, and the rate was a thousandth or
    less of the first one. With a rate of zero it takes 20 updates, and half of all so far.

    Spares: a first step at zero, a schedule's end, a rate of zero without a schedule, weights that
    are not FP32, updates that were left out, schedules that end small for fewer steps (one cycle).

    Sources: ivadomed/ivadomed#55, automl/Auto-PyTorch#211,
    aimagelab/meshed-memory-transformer#71.
    """

    kind = "updates_change_nothing"

    def __init__(self) -> None:
        self._first, self._in_a_row = 0.0, 0
        self._before: list[torch.Tensor] = []

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main:
            return None
        groups = [group for group in optimizer.param_groups if group.get("lr") is not None]
        rate = max((float(group["lr"]) for group in groups), default=1.0)
        # A scheduler that begins at zero says what it multiplies.
        starts = (float(group.get("initial_lr", rate)) for group in groups)
        self._first = max(self._first, rate, *starts, 0.0)
        if rate > FALLEN * self._first or not self._first:
            self.interrupted()
            return None
        held = [each for group in optimizer.param_groups for each in group["params"]]
        graded = [each for each in held if each.grad is not None]
        if any(each.dtype is not torch.float32 or type(each) not in PLAIN for each in graded):
            return None
        if not self._in_a_row or len(graded) != len(self._before):
            self._before = [_few(each).clone() for each in graded]
            self._in_a_row = bool(graded)
            return None
        if not all(map(torch.equal, map(_few, graded), self._before)):
            self.interrupted()
            return None
        self._in_a_row += 1
        wanted = IN_A_ROW if rate else max(AT_ZERO, seen.updates // 2)
        if self._in_a_row <= wanted or not any(bool(each.grad.any()) for each in graded):
            return None
        return Proof(
            fact=f"the learning rate has fallen from {self._first:.2g} to {rate:.2g} within "
            f"{seen.updates} updates: the last {wanted} have changed no bit of any weight",
            where=_schedule_step(script_place())
            or seen.latest("scheduler")
            or seen.place_of(optimizer),
            mend="step the schedule once an epoch, or give it the number of all batches",
        )

    def interrupted(self) -> None:
        self._in_a_row, self._before = 0, []


def _few(each: torch.Tensor) -> torch.Tensor:
    return each.detach().flatten()[:ELEMENTS]


def _schedule_step(place: ScriptLine | None) -> str:
    """The next ``x.step()`` after the optimizer's own, in the same function."""
    if place is None:
        return ""
    steps = calls(function_at(place.file, place.line), "step")
    lines = [call.lineno for call in steps if call.lineno > place.line]
    return told(place.file, min(lines)) if lines else ""
