"""Weights that are kept, or loaded, in name alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.own_draw import (
    PLAIN,
    held_by,
    is_drawn_at_random,
    is_own_draw,
)
from supervisor.worker.mistakes.evidence.places import ScriptLine, script_place

MOST = 16


class KeptByReference(Mistake):
    """``best = model.state_dict()``: it holds the weights themselves, not what they were.

    Proof: the script loads a ``state_dict()`` that it got steps ago from the same module; each
    tensor in it is still the module's own memory, and was written since: nothing is brought back.

    Spares: clones and copies, another module's weights (an EMA, a target network), files, what is
    loaded before the next step, dictionaries that the script has made or changed itself.

    Sources: discuss.pytorch.org/t/saving-and-loading-best-model/98658, the warning in
    pytorch.org/tutorials/beginner/saving_loading_models.html.
    """

    kind = "weights_kept_by_reference"
    lasts = True

    def __init__(self) -> None:
        self._made: list[_Made] = []

    def exported(self, seen: SeenSoFar, module: Module, state: Mapping[str, Any]) -> None:
        first = next(Module.parameters(module), None)
        if first is None:
            return
        try:
            kept = weakref.ref(state)
        except TypeError:  # a plain dictionary, of the script's own method
            return
        self._made = [each for each in self._made if each.state() is not None][-MOST:]
        self._made.append(_Made(kept, first._version, seen.steps_done(), script_place()))

    def loaded(
        self, seen: SeenSoFar, module: Module, state: Mapping[str, Any], *, is_strict: bool
    ) -> Proof | None:
        found = next((each for each in self._made if each.state() is state), None)
        if found is None or seen.steps_done() <= found.steps:
            return None
        own = dict(Module.named_parameters(module, remove_duplicate=False))
        is_kept = own and all(name in state and _is_same(state[name], own[name]) for name in own)
        if not is_kept or next(iter(own.values()))._version <= found.version:
            return None
        return Proof(
            fact=f"weights were kept by reference: the state_dict() of "
            f"{seen.steps_done() - found.steps} steps ago holds the model's own memory, which was "
            "trained on; loading it brings nothing back",
            where=found.place or script_place(),
            mend="best = copy.deepcopy(model.state_dict())",
        )


class _Made(NamedTuple):
    state: Callable[[], Any]
    version: int
    steps: int
    place: ScriptLine | None


def _is_same(value: Any, own: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and type(value) in PLAIN
        and value.layout is own.layout is torch.strided
        and value.shape == own.shape
        and value.device == own.device
        and value.data_ptr() == own.data_ptr() != 0
    )


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
        trained = set(map(id, held_by(optimizer)))
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
