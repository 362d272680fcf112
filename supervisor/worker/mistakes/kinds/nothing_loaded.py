"""A checkpoint of which nothing fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.own_draw import is_drawn_at_random, is_own_draw
from supervisor.worker.mistakes.evidence.places import ScriptLine, script_place

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
        self._open: list[tuple[Module, set[str], ScriptLine | None]] = []
        self._matched: set[str] = set()

    def loaded(
        self, seen: SeenSoFar, module: Module, state: Mapping[str, Any], *, is_strict: bool
    ) -> Proof | None:
        names = {name for name, value in state.items() if isinstance(value, torch.Tensor)}
        own = _names(module)
        if names & own or not own:
            self._matched |= names
        elif not is_strict and len(names) >= FEW:
            self._open.append((module, names, script_place()))
        return None

    def updated(self, seen: SeenSoFar, optimizer: Optimizer, *, is_main: bool) -> Proof | None:
        self.is_over = True
        trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for module, names, place in self._open:
            is_trained = any(id(each) in trained for each in Module.parameters(module))
            if names & self._matched or not is_trained:
                continue
            given, wanted = min(names), min(_names(module))
            return Proof(
                fact=f"nothing was loaded: with strict=False none of {len(names)} tensors has a "
                f"name of the model ({given} is given, {wanted} wanted); it trains from scratch",
                where=place,
                names=(given, wanted),
                mend="mend the names, and load with strict=True, or check what it returns",
            )
        return None

    def before_update(self, seen: SeenSoFar, optimizer: Optimizer) -> None:
        self._open = [each for each in self._open if _is_drawn(each[0])]


def _is_drawn(module: Module) -> bool:
    layers = [part for part in Module.modules(module) if is_drawn_at_random(part)]
    return bool(layers) and all(map(is_own_draw, layers))


def _names(module: Module) -> set[str]:
    return {name for name, _ in (*Module.named_parameters(module), *Module.named_buffers(module))}
