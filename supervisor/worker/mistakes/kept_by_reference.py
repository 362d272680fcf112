"""Weights that are kept, and go on being trained."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import Module

from supervisor.worker.mistakes.evidence.own_draw import PLAIN
from supervisor.worker.mistakes.evidence.places import ScriptLine, script_place
from supervisor.worker.mistakes.mistake import Mistake, Proof, SeenSoFar, WeightsLoaded

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
        self._made = [each for each in self._made if each.state() is not None][-MOST:]
        try:
            kept = weakref.ref(state)
        except TypeError:  # a plain dictionary, of the script's own method
            return
        self._made.append(_Made(kept, first._version, seen.steps_done(), script_place()))

    def loaded(self, seen: SeenSoFar, load: WeightsLoaded) -> Proof | None:
        found = next((each for each in self._made if each.state() is load.state), None)
        if found is None or seen.steps_done() <= found.steps:
            return None
        own = {**dict(Module.named_parameters(load.module, remove_duplicate=False))}
        given = {name: value for name, value in load.state.items() if name in own}
        if not own or given.keys() != own.keys():
            return None
        if not all(_is_same_memory(value, own[name]) for name, value in given.items()):
            return None
        first = next(iter(own.values()))
        if first._version <= found.version:
            return None
        passed = seen.steps_done() - found.steps
        where = str(found.place or load.place() or "")
        return Proof(
            fact=(
                f"weights were kept by reference: the state_dict() of {passed} steps ago holds the "
                "model's own memory, which was trained on; loading it brings nothing back"
            ),
            where=where,
            mend="best = copy.deepcopy(model.state_dict())",
        )


class _Made:
    __slots__ = ("place", "state", "steps", "version")

    def __init__(
        self, state: Callable[[], Any], version: int, steps: int, place: ScriptLine | None
    ) -> None:
        self.state = state
        self.version = version
        self.steps = steps
        self.place = place


def _is_same_memory(value: Any, own: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and type(value) in PLAIN
        and value.layout is own.layout is torch.strided
        and value.shape == own.shape
        and value.data_ptr() == own.data_ptr()
        and value.device == own.device
        and value.data_ptr() != 0
    )
