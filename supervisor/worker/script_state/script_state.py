"""The script state of the script's Python: when it is taken, and what a resume makes of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from supervisor.training_state.held_values import find_held, is_of_call, storages
from supervisor.training_state.plain_form import from_plain
from supervisor.training_state.registry import Registry
from supervisor.training_state.rng import random_position
from supervisor.training_state.script_state.facts import COMPARED_BYTES, fact_of, is_unseen
from supervisor.training_state.script_state.place import Place
from supervisor.training_state.script_state.put_back import put_back
from supervisor.training_state.script_state.script_state import (
    PROCESS_NUMBER,
    RANDOM_NUMBERS,
    Difference,
    Nature,
    ScriptState,
    differences,
    is_another_order,
    reach_of,
    unpack,
)
from supervisor.training_state.tensors import local
from supervisor.worker.core.breakers import Breakers
from supervisor.worker.core.part import Part, SavePoint
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.script_state.gathering_calls import unseen_gathering
from supervisor.worker.script_state.user_frames import call_under_way, user_frames
from supervisor.worker.script_state.user_tensors import UserTensors, registry_tensors

_ROUNDS = 8
"""What lies within a missing container is put back one level a round."""
_KEPT_BYTES = 2**24
"""Of what a replay finds before its first update."""
_NAMED = 3
_PATHS = 20


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What came of comparing the script's state with that of a checkpoint.

    Attributes:
        equal: places that are as they were, or by nature another in each process.
        put_back: paths of what was another and was put back.
        different: places that are still another.
        out_of_reach: objects that hide their state.
        problems: what is not as it was, in words.
        texts: those that differ by nature, as they were and as they are.
    """

    equal: int = 0
    put_back: tuple[str, ...] = ()
    different: int = 0
    out_of_reach: int = 0
    problems: list[str] = field(default_factory=list)
    texts: tuple[tuple[str, str], ...] = ()

    def as_event(self) -> dict[str, Any]:
        """The counts, and the first paths of what was put back, for the event `resumed`."""
        return {
            "equal": self.equal,
            "put_back": len(self.put_back),
            "different": self.different,
            "out_of_reach": self.out_of_reach,
            "paths": list(self.put_back[:_PATHS]),
        }


class ScriptStatePart(Part):
    """Takes the script state before anything is trained, at each checkpoint, and on arrival.

    Args:
        registry: of the training.
        breakers: keeps errors of ours from the script.
    """

    name = "census"

    def __init__(self, registry: Registry, breakers: Breakers) -> None:
        self._registry = registry
        self._part = breakers("census")
        self._first: ScriptState | None = None
        self._found: dict[str, Any] = {}

    def training_starts(self) -> None:
        """Takes the first one; last of all parts, after what others do with files and ranks.

        Only then: one that is taken later, because this one failed, would say that what the
        training changed meanwhile differs by nature.
        """
        first = ScriptState.take(reach_of(user_frames()), self._in_registry())
        first.facts[RANDOM_NUMBERS] = random_position()
        first.facts[PROCESS_NUMBER] = f"= {os.getpid()}"
        self._first = first

    def save(self, point: SavePoint) -> None:
        """Its time is that of the save or the exit copy, whose interval yields."""
        if self._first is not None:
            with self._part:
                script_state = ScriptState.take(point.reach, self._in_registry())
                point.hold({"census": script_state.pack(self._first)})

    def keep_small_values(self) -> None:
        """Called in a replay before its first update: keeps small tensors and arrays as
        they are now.

        What the recorded run never changed from here on is not in its checkpoints; a replay may
        change it, where it computes with outputs that are none (labels that an evaluation
        corrects).
        """
        with self._part:
            left = _KEPT_BYTES
            found = find_held(user_frames(), self._in_registry())
            for path, value in found.items():
                one = local(value) if isinstance(value, torch.Tensor) else value
                left -= one.nbytes
                if left > 0 and one.nbytes <= COMPARED_BYTES:
                    self._found[path] = one.clone() if isinstance(one, torch.Tensor) else one.copy()

    def facts(self) -> dict[str, str]:
        """Returns path → fact of this moment, for `supervisor verify`, whatever time it takes;
        nothing where there are too many objects."""
        but = self._in_registry()
        script_state = ScriptState.take(reach_of(user_frames(), call_under_way()), but)
        return script_state.facts if script_state.is_whole else {}

    def compare(self, saved: Mapping[str, Any], held: UserTensors) -> Compared:
        """Puts back what is not as it was at the checkpoint, tensors too, and compares again.

        Called on arrival, when models and optimizers have been put back.

        Args:
            saved: state of the checkpoint.
            held: of this process.
        """
        tensors = {path: from_plain(value) for path, value in saved.get("held", {}).items()}
        call = call_under_way()
        packed = saved.get("census")
        if packed is None or self._first is None:
            problems = held.put_back(user_frames(), tensors, call)
            problems.append("what the script's variables hold was not recorded with the checkpoint")
            return Compared(problems=problems)
        first, then = unpack(packed)
        nature = Nature(first, self._first, OUTSIDE.numbers())
        if nature.data_differ:  # the script may have come to another call
            of_call = {path: tensors.pop(path) for path in list(tensors) if is_of_call(path)}
        else:
            of_call = {}
        tensors = self._unchanged(then) | tensors
        changed = self._put_back(then, nature, tensors)
        problems = held.put_back(user_frames(), tensors, call)
        problems += held.differing(user_frames(), of_call, call)
        changed += self._put_back(then, nature, tensors)
        now, _ = self._look(then)
        left = differences(then, now, nature)
        different = {one.path for one in left}
        if unseen := unseen_gathering(user_frames()):
            problems.append(f"a function in C gathers tensors out of sight: {unseen}")
        hidden = [path for path, fact in then.facts.items() if is_unseen(fact)]
        problems += [f"{path} does not tell where it stands" for path in hidden[:_NAMED]]
        restored = set(changed) - different
        return Compared(
            equal=len(then.facts) - len(restored) - len(different),
            put_back=tuple(sorted(restored)),
            different=len(different),
            out_of_reach=then.out_of_reach,
            problems=problems + _named(left),
            texts=tuple(nature.texts),
        )

    def _unchanged(self, then: ScriptState) -> dict[str, Any]:
        """What the recorded run had not changed at `then`, and this one has: as it was before."""
        now, _ = self._look(then) if self._found else (then, {})
        return {
            path: value
            for path, value in self._found.items()
            if now.facts.get(path) not in (None, then.facts.get(path))
            and fact_of(Place(path, value)) == then.facts.get(path)
        }

    def _put_back(self, then: ScriptState, nature: Nature, tensors: Mapping[str, Any]) -> list[str]:
        changed: list[str] = []
        earlier: list[Difference] = []
        for _ in range(_ROUNDS):
            now, places = self._look(then)
            found = differences(then, now, nature)
            # A loop that has gone another way by what differed from the start cannot be brought
            # back to the recorded one in the middle of a call.
            is_elsewhere = any(is_of_call(one.path) for one in found)
            found = [
                one
                for one in found
                if one.path not in nature.differing or not (is_elsewhere or is_another_order(one))
            ]
            if not found or found == earlier:
                break
            changed += put_back(found, places, tensors)
            earlier = found
        return changed

    def _look(self, then: ScriptState) -> tuple[ScriptState, dict[str, Any]]:
        but = self._in_registry()
        return ScriptState.with_places(user_frames(), but, call_under_way(), like=then)

    def _in_registry(self) -> set[int]:
        return storages(registry_tensors(self._registry))


def _named(left: list[Difference]) -> list[str]:
    told = [str(one) for one in left[:_NAMED]]
    if len(left) > _NAMED:
        told.append(f"and {len(left) - _NAMED} other values of the script are not as they were")
    return told
