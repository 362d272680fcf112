"""A checkpoint of which nothing fits."""

from __future__ import annotations

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.own_draw import is_drawn_at_random, is_own_draw
from supervisor.worker.mistakes.evidence.places import ScriptLine
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar, WeightsLoaded

FEW = 2


class NothingLoaded(Mistake):
    """``load_state_dict(..., strict=False)`` with names that begin with ``module.``, or are nested.

    Proof: before the first update the script gave a module named tensors with ``strict=False``, and
    not one name of them is the module's; no load of the same tensors into another module matched a
    name either; at the first update, which trains it, all its layers hold their constructor's draw.

    Spares: a part that fits, dictionaries that are tried on several modules, modules that get
    their weights later, or hold loaded ones already (an adapter that may not be there).

    Sources: discuss.pytorch.org/t/missing-keys-unexpected-keys-in-state-dict-when-loading/22379,
    github.com/pytorch/pytorch/issues/3678 (names that begin with module.).
    """

    kind = "nothing_loaded"

    def __init__(self) -> None:
        self._open: list[tuple[Module, frozenset[str], ScriptLine | None]] = []
        self._matched: set[str] = set()

    def loaded(self, seen: SeenSoFar, load: WeightsLoaded) -> Proof | None:
        names = frozenset(
            name for name, value in load.state.items() if isinstance(value, torch.Tensor)
        )
        own = {name for name, _ in _tensors(load.module)}
        if names & own or not own:
            self._matched |= names
        elif not load.is_strict and len(names) >= FEW:
            self._open.append((load.module, names, load.place()))
        return None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        self.is_over = True
        trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for module, names, place in self._open:
            own = dict(_tensors(module))
            if names & self._matched or not any(
                id(each) in trained for each in Module.parameters(module)
            ):
                continue
            given, wanted = min(names), min(own)
            return Proof(
                fact=(
                    f"nothing was loaded: with strict=False none of {len(names)} tensors has a "
                    f"name of the model ({given} is given, {wanted} wanted); it trains from scratch"
                ),
                where=str(place) if place else "",
                names=(given, wanted),
                mend="mend the names, and load with strict=True, or check what it returns",
            )
        return None

    def before_update(self, seen: SeenSoFar, optimizer: Optimizer) -> None:
        self._open = [each for each in self._open if _is_drawn(each[0])]


def _is_drawn(module: Module) -> bool:
    layers = [part for part in Module.modules(module) if is_drawn_at_random(part)]
    return bool(layers) and all(map(is_own_draw, layers))


def _tensors(module: Module) -> list[tuple[str, torch.Tensor]]:
    return [*Module.named_parameters(module), *Module.named_buffers(module)]
