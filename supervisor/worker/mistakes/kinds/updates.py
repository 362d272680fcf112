"""Updates that reach no weight: of no optimizer, at no rate, rounded away, no more of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Adam, AdamW, Optimizer

from supervisor.codes import Severity
from supervisor.worker.mistakes.evidence.loss_graph import LossGraph
from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import Owner, assigned_at, owners, some
from supervisor.worker.mistakes.evidence.own_draw import (
    PLAIN,
    held_by,
    is_drawn_at_random,
    is_own_draw,
    own_parameters,
)
from supervisor.worker.mistakes.evidence.places import (
    ScriptLine,
    calls,
    function_at,
    makes_more_later,
    script_place,
    told,
)

SOME = 4096
UPDATES = 20
"""Long enough for an optimizer that is made late, early enough to save the run."""


class Untrained(Mistake):
    """A forgotten head, a layer replaced after the optimizer was made, layers in a plain list.

    Proof: at each walk the loss reaches all parameters of a module of torch, which hold their
    constructor's own draw to the last update; they have a gradient, no optimizer has them, and
    through them runs the gradient of other layers, which are updated. It is certain where they are
    the loss's nearest layers (a head), hide in a plain container, or the optimizer holds tensors of
    no module (what was replaced). It is asked, in the report alone, where trained layers stand on
    both sides: a layer that is random and fixed on purpose looks the same.

    Spares: what was loaded, copied or initialised by hand (target and perceptual networks, FP32
    masters), what another optimizer has (critics), random features below a trained layer (linear
    probes, reservoirs), trained tensors that are no layer (prompts, adversarial inputs, low-rank
    factors), biases alone, and scripts that add parameters later: ``add_param_group``, or another
    optimizer further down (stages).

    Sources: zjunlp/HVPNeT#5, facebookresearch/mmf#104, meta-pytorch/opacus#432,
    huggingface/transformers#4450, pytorch/pytorch#59925, LianpoWang/SLIIF#13.
    """

    kind = "trained_by_nothing"

    def __init__(self) -> None:
        self._suspects: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None
        self._through: set[int] = set()
        self._between: set[int] = set()
        self._reached = 0

    def backward(self, seen: SeenSoFar, graph: LossGraph | None) -> Proof | None:
        if graph is None:
            return None
        held = set(map(id, held_by(*seen.registry.optimizers.values())))
        if not held & graph.leaves.keys():
            return None  # the loss of another training
        free = {key: leaf for key, (leaf, _) in graph.leaves.items() if key not in held}
        if not free:
            self.is_over = True
            return None
        known = owners(seen.registry)
        drawn = {
            key: leaf for key, leaf in free.items() if key in known and _all_free(known[key], free)
        }
        if self._suspects is None:
            layers = {
                key
                for key in held & graph.leaves.keys()
                if key in known and is_drawn_at_random(known[key].module)
            }
            self._through = {
                key
                for key, leaf in drawn.items()
                if is_drawn_at_random(known[key].module) and graph.is_reached_beside(leaf, layers)
            }
            self._between = self._through and graph.reached_through(layers) & self._through
            self._suspects = {key: (leaf, _few(leaf, SOME).clone()) for key, leaf in drawn.items()}
        else:
            self._suspects = {key: kept for key, kept in self._suspects.items() if key in drawn}
        self._through &= self._suspects.keys()
        self._reached = len(graph.leaves)
        self.is_over = not self._through
        return None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if seen.updates < UPDATES or not self._suspects:
            return None
        self.is_over = True
        known = owners(seen.registry)
        proved = {
            key: known[key]
            for key, (leaf, before) in self._suspects.items()
            if key in known
            and leaf.grad is not None
            and bool(leaf.grad.any())
            and torch.equal(_few(leaf, SOME), before)
        }
        through, place = proved.keys() & self._through, seen.place_of(optimizer)
        if not through or (place is not None and makes_more_later(place)):
            return None
        names = [owner.name for owner in proved.values()]
        hidden = next((owner.hidden_in for owner in proved.values() if owner.hidden_in), None)
        where: ScriptLine | str | None = place
        also, mend = "", "make the optimizer after all layers, with model.parameters()"
        if hidden is not None:
            where, also = assigned_at(*hidden) or place, ", in a plain container, so not registered"
            mend = f"self.{hidden[1]} = nn.ModuleList(...), before the optimizer is made"
        held = held_by(optimizer)
        is_replaced = any(each.grad is None and id(each) not in known for each in held)
        is_certain = hidden or is_replaced or not through <= self._between
        return Proof(
            fact=f"{len(names)} of {self._reached} tensors that the loss reaches are in no "
            f"optimizer{also}, and have not changed in {seen.updates} updates: {some(names)}",
            where=where,
            names=names,
            mend=mend,
            severity=Severity.HIGH if is_certain else Severity.LOW,
        )


def _all_free(owner: Owner, free: dict[int, torch.Tensor]) -> bool:
    module: nn.Module = owner.module
    words = owner.name.lower()
    if "lora" in words or "adapter" in words:
        return False
    return all(id(each) in free for each in own_parameters(module)) and is_own_draw(module)


IN_A_ROW = 10
AT_ZERO = 20
"""The same with a rate of zero, and half of all updates so far: schedules end there."""
MANY = 65_536
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
        held = held_by(optimizer)
        graded = [each for each in held if each.grad is not None]
        if any(each.dtype is not torch.float32 or type(each) not in PLAIN for each in graded):
            return None
        if not self._in_a_row or len(graded) != len(self._before):
            self._before = [_few(each, MANY).clone() for each in graded]
            self._in_a_row = bool(graded)
            return None
        if not all(map(torch.equal, (_few(each, MANY) for each in graded), self._before)):
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


def _schedule_step(place: ScriptLine | None) -> str:
    """The next ``x.step()`` after the optimizer's own, in the same function."""
    if place is None:
        return ""
    steps = calls(function_at(place.file, place.line), "step")
    lines = [call.lineno for call in steps if call.lineno > place.line]
    return told(place.file, min(lines)) if lines else ""


ROUNDED = 40
FEW, TENSORS = 256, 16
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
        self.is_over = self._count >= ROUNDED or len(known) < len(changes)
        return self._judge(seen, optimizer) if self._count == ROUNDED else None

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
            fact=f"updates are rounded away: of the {kind} elements that {ROUNDED} updates were to "
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


def _few(each: torch.Tensor, count: int = FEW) -> torch.Tensor:
    return each.detach().flatten()[:count]


def _intended(state: dict[str, Any], group: dict[str, Any]) -> torch.Tensor | None:
    """What the last update was to change, from its moments (Kingma & Ba 2015, algorithm 1)."""
    if "exp_avg" not in state or group["amsgrad"]:
        return None
    count, (first, second) = state["step"], group["betas"]
    mean = _few(state["exp_avg"]).float() / (1 - first**count)
    square = _few(state["exp_avg_sq"]).float() / (1 - second**count)
    change: torch.Tensor = mean / (square.sqrt() + group["eps"]) * -group["lr"]
    return change


STILL, EVERY = 40, 8
STILL_TENSORS, STILL_ELEMENTS = 8, 1024


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
            held = held_by(optimizer)
            graded = [each for each in held if each.grad is not None]
            self._of = graded[:: max(1, len(graded) // STILL_TENSORS)][:STILL_TENSORS]
        versions, earlier = [each._version for each in self._of], self._versions
        self._versions = versions
        if seen.updates == 1:
            is_plain = all(e.dtype is torch.float32 and type(e) in PLAIN for e in self._of)
            self.is_over = not self._of or not is_plain or isinstance(optimizer, LBFGS)
        elif seen.updates == 2:
            self.is_over = any(map(int.__eq__, versions, earlier))
        elif versions != earlier:
            self._still = 0
            self.is_over = seen.updates > 100 - STILL
        else:
            return self._stands_still(seen, optimizer)
        return None

    def _stands_still(self, seen: SeenSoFar, optimizer: Optimizer) -> Proof | None:
        if not self._still:
            self._bits = [_few(each, STILL_ELEMENTS).clone() for each in self._of]
        self._still += 1
        if self._still % EVERY:
            return None
        rates = {id(p): float(g.get("lr", 0)) for g in optimizer.param_groups for p in g["params"]}
        self.is_over = not all(_is_due(each, rates.get(id(each), 0.0)) for each in self._of)
        if self.is_over or self._still < STILL:
            return None
        self.is_over = True
        if not all(map(torch.equal, (_few(each, STILL_ELEMENTS) for each in self._of), self._bits)):
            return None
        return Proof(
            fact=f"the optimizer makes no more updates: its last {STILL} steps have written to "
            "no weight, though there were gradients and a rate",
            where=seen.place_of(optimizer),
            mend="make the optimizer anew, and look at what replaces its step(): a compiled or "
            "patched one keeps what it saw first",
        )


def _is_due(each: torch.Tensor, rate: float) -> bool:
    if type(each.grad) is not torch.Tensor or each.grad.layout is not torch.strided:
        return False
    now = _few(each, STILL_ELEMENTS)
    return bool((now - rate * _few(each.grad, STILL_ELEMENTS) != now).any())
