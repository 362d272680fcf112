"""Weights that are kept, and go on being trained."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import Module

from supervisor.worker.mistakes.evidence.mistake import Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.evidence.own_draw import PLAIN
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
