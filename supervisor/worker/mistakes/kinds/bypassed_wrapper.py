"""DDP whose module is called past it."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
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
