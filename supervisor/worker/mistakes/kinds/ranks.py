"""Ranks that do not train one model."""

from __future__ import annotations

import json
from typing import Any

import torch
import xxhash
from torch import nn
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.names import owners, some
from supervisor.worker.mistakes.evidence.own_draw import PLAIN, held_by
from supervisor.worker.mistakes.evidence.places import ScriptLine, names_in, script_place

UPDATES = 5
OWN_AVERAGING = ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "average_parameters",
                 "broadcast", "all_gather_into_tensor", "all_reduce_coalesced")  # fmt: skip


class BypassedWrapper(Mistake):
    """The training forward calls ``model.module``: gradients are never averaged.

    Proof: of a module within a `DistributedDataParallel`, each training forward of the first 5
    updates was called on the module itself, and the wrapper has never run; its files call nothing
    by which the script could average by itself.

    Spares: ``no_sync`` (the wrapper runs), evaluation through ``model.module`` (no gradients),
    scripts that exchange gradients or weights themselves.

    Sources: jingyaogong/minimind#853, pytorch/pytorch#104336.
    """

    kind = "wrapper_bypassed"

    def __init__(self) -> None:
        self._called: dict[int, nn.Module] = {}
        self._wrapper_ran = False
        self._place: ScriptLine | None = None

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        self.is_over = seen.world_size < 2
        if self.is_over or not call.with_graph:
            return None
        if isinstance(call.module, nn.parallel.DistributedDataParallel):
            self._wrapper_ran = True
        elif call.module.training:
            self._called[id(call.module)] = call.module
            self._place = self._place or script_place()
        return None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main or seen.updates < UPDATES:
            return None
        self.is_over = True
        if self._wrapper_ran or self._place is None:
            return None
        idle = {id(each.module) for each in seen.idle_wrappers()}
        wrapped = [each for key, each in self._called.items() if key in idle]
        if not wrapped or names_in(self._place, *OWN_AVERAGING):
            return None
        return Proof(
            fact=f"DistributedDataParallel is bypassed: {type(wrapped[0]).__name__} is called as "
            ".module in training, so no rank ever gets the gradients of another and their weights "
            "drift apart",
            where=self._place,
            mend="call the wrapper: output = model(x), where model is the DistributedDataParallel",
        )


LOOKS, JUDGED = (3, 6, 9), 12
"""Updates made before the ranks look, and when the first one compares: the others have written."""
TENSORS, ELEMENTS = 32, 256


class RanksApart(Mistake):
    """Gradients are averaged by hand, and each rank drew its own first weights: the average fits
    none of them.

    Proof: before three updates all ranks hold the same bits in the gradients of all weight
    matrices (the first elements of up to 32), others each time and not zero, and not the same bits
    in a matrix itself. They tell each other through a file each in the run's folder.

    Spares: one process, experts and shards (their gradients differ, too), weights that are the
    same, ranks of nodes that share no folder, gradients that the loss makes constant.

    Sources: sparticlesteve/pytorch-benchmarks#1, Lightning-AI/pytorch-lightning#6013.
    """

    kind = "ranks_hold_different_weights"
    in_a_row = True

    def __init__(self) -> None:
        self._looks: list[list[tuple[str, str]]] = []
        self._of: list[torch.Tensor] = []

    def before_update(self, seen: SeenSoFar, optimizer: Optimizer) -> None:
        self.is_over = seen.world_size < 2 or seen.folder is None
        if self.is_over or seen.folder is None or seen.updates not in LOOKS[len(self._looks) :]:
            return
        self._of = (
            self._of
            or [
                each
                for each in held_by(optimizer)
                if each.dim() > 1 and type(each) in PLAIN and type(each.grad) is torch.Tensor
            ][:TENSORS]
        )
        self._looks.append([(_digest(each.grad), _digest(each)) for each in self._of])
        if seen.updates == LOOKS[-1]:
            seen.folder.mkdir(parents=True, exist_ok=True)
            path = seen.folder / f"rank_{seen.rank}.json"
            path.with_suffix(".new").write_text(json.dumps(self._looks))
            path.with_suffix(".new").replace(path)

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        if not is_main or seen.updates < JUDGED or seen.folder is None:
            return None
        self.is_over = True
        paths = [seen.folder / f"rank_{rank}.json" for rank in range(seen.world_size)]
        if seen.rank or not all(path.exists() for path in paths):
            return None
        differing = _differing([json.loads(path.read_text()) for path in paths])
        known = owners(seen.registry)
        found = [self._of[place] for place in differing]
        names = [known[id(each)].name if id(each) in known else "a weight" for each in found]
        if not names:
            return None
        return Proof(
            fact=f"{seen.world_size} ranks train different weights with the same gradients: "
            f"{len(names)} of {len(self._of)} matrices differ from rank to rank: {some(names)}",
            where=seen.place_of(optimizer),
            names=names,
            mend="one seed on all ranks before the model is made, or dist.broadcast(p.data, 0) of "
            "each parameter",
        )


def _digest(each: torch.Tensor | None) -> str:
    """Of the first bits; empty where they are no evidence, all zero."""
    few = torch.zeros(0) if each is None else each.detach().flatten()[:ELEMENTS].cpu()
    return xxhash.xxh3_64_hexdigest(few.view(torch.uint8).numpy().tobytes()) if few.any() else ""


def _differing(ranks: list[list[list[Any]]]) -> list[int]:
    """Places of matrices that differ at each look; none unless all gradients are the same."""
    if len({(len(looks), *map(len, looks)) for looks in ranks}) != 1 or not ranks[0][0]:
        return []
    places = range(len(ranks[0][0]))
    differ = set(places)
    for place in places:
        before: set[str] = set()
        for look in range(len(ranks[0])):
            gradients = {looks[look][place][0] for looks in ranks}
            if len(gradients) != 1 or gradients & (before | {""}):
                return []
            before |= gradients
            if len({looks[look][place][1] for looks in ranks}) == 1:
                differ.discard(place)
    return sorted(differ)
