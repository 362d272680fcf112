"""Parameters that the loss reaches and no optimizer holds."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from supervisor.codes import Severity
from supervisor.worker.mistakes.evidence.loss_graph import LossGraph
from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import Owner, assigned_at, owners, some
from supervisor.worker.mistakes.evidence.own_draw import (
    is_drawn_at_random,
    is_own_draw,
    own_parameters,
)
from supervisor.worker.mistakes.evidence.places import ScriptLine, makes_more_later

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
        held = {
            id(each)
            for optimizer in seen.registry.optimizers.values()
            for group in optimizer.param_groups
            for each in group["params"]
        }
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
            self._suspects = {key: (leaf, _some_of(leaf)) for key, leaf in drawn.items()}
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
            and torch.equal(_some_of(leaf), before)
        }
        through, place = proved.keys() & self._through, seen.place_of(optimizer)
        if not through or (place is not None and makes_more_later(place)):
            return None
        names = [owner.name for owner in proved.values()]
        hidden = next((owner.hidden_in for owner in proved.values() if owner.hidden_in), None)
        where: ScriptLine | str | None = place
        told, mend = "", "make the optimizer after all layers, with model.parameters()"
        if hidden is not None:
            where, told = assigned_at(*hidden) or place, ", in a plain container, so not registered"
            mend = f"self.{hidden[1]} = nn.ModuleList(...), before the optimizer is made"
        held = [each for group in optimizer.param_groups for each in group["params"]]
        is_replaced = any(each.grad is None and id(each) not in known for each in held)
        is_certain = hidden or is_replaced or not through <= self._between
        return Proof(
            fact=f"{len(names)} of {self._reached} tensors that the loss reaches are in no "
            f"optimizer{told}, and have not changed in {seen.updates} updates: {some(names)}",
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


def _some_of(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.detach().flatten()[:4096].clone()
