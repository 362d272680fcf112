"""The census: a fact for each place that the script's variables lead to."""

from __future__ import annotations

import gc
import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from supervisor.errors import pass_on
from supervisor.training_state.census.facts import UNSEEN, fact_of, is_entered
from supervisor.training_state.census.place import Place
from supervisor.training_state.census.python_iterators import hides_its_place
from supervisor.training_state.census.reach import Reach
from supervisor.training_state.census.shared_parts import shared_parts
from supervisor.training_state.tensors import outside_autograd, storage_of

ADDRESS = "the address of an object"
RANDOM_NUMBERS = "random numbers before the training"
"""Path in the first census of a run: where the global generators stood."""
PROCESS_NUMBER = "number of the process"
"""Path in the first census of a run."""
CALL = "call"
"""Begins the paths of the call under way."""
_ADDRESSES = 1 << 32
"""Whole numbers beyond may be addresses of objects; they are if an object lies there."""


@dataclass(frozen=True, kw_only=True)
class Census:
    """What the script's Python held at one moment.

    Attributes:
        facts: path → fact, see `facts.fact_of`.
        out_of_reach: objects that hide their state, and parts of very long containers.
        is_whole: there were not too many objects.
    """

    facts: dict[str, str] = field(default_factory=dict)
    out_of_reach: int = 0
    is_whole: bool = True

    @classmethod
    def take(
        cls,
        frames: Mapping[str, Any],
        but: Collection[int] = (),
        call: Mapping[str, Any] | None = None,
    ) -> Census:
        """Goes over all that the script can reach. Called outside of torch's own code.

        Args:
            frames: see `Reach`.
            but: memory of tensors that a checkpoint holds anyway (`tensors.storage_of`).
            call: name → what the call under way works on.
        """
        return cls._of(_reach(frames, call), but)[0]

    @classmethod
    def with_places(
        cls,
        frames: Mapping[str, Any],
        but: Collection[int] = (),
        call: Mapping[str, Any] | None = None,
        like: Census | None = None,
    ) -> tuple[Census, dict[str, Place]]:
        """The same, and the live places by their paths. Called on arrival.

        Args:
            frames: see `Reach`.
            but, call: see `take`.
            like: what it is to be compared with: the same containers are entered.
        """
        entered = {path for path, fact in like.facts.items() if is_entered(fact)} if like else ()
        return cls._of(_reach(frames, call, entered), but, asks_gc=True)

    @classmethod
    def _of(
        cls, reach: Reach, but: Collection[int], *, asks_gc: bool = False
    ) -> tuple[Census, dict[str, Place]]:
        facts: dict[str, str] = {}
        places: dict[str, Place] = {}
        hidden = 0
        numbers: list[tuple[Place, list[int]]] = []
        with outside_autograd(), torch._C.DisableTorchFunctionSubclass():
            for place in reach:
                value = place.value
                places[place.path] = place
                is_saved = issubclass(type(value), torch.Tensor) and storage_of(value) in but
                if is_saved and not place.same_as:
                    continue
                try:
                    facts[place.path] = fact_of(place)
                except BaseException as error:  # a __len__ or __repr__ of the user's class
                    pass_on(error)
                    hidden += 1
                if type(value) is int and value > _ADDRESSES:
                    numbers.append((place, [value]))
                elif place.is_plain and (large := _large(value)):
                    numbers.append((place, large))
        known: Collection[int] = reach.objects.keys()
        if asks_gc and numbers:
            known = {*known, *map(id, gc.get_objects())}
        for place, values in numbers:
            if all(value in known for value in values):
                facts[place.path] = ADDRESS
        facts.update(shared_parts(places.values()))
        facts.update(_out_of_sight(places.values()))
        found = cls(facts=facts, out_of_reach=reach.out_of_reach + hidden, is_whole=reach.is_whole)
        return found, places

    def pack(self, earlier: Census) -> torch.Tensor:
        """Returns this census and an earlier one of the same run as bytes."""
        changed = {
            path: fact for path, fact in self.facts.items() if earlier.facts.get(path) != fact
        }
        form = {
            "earlier": earlier.facts,
            "changed": changed,
            "gone": [path for path in earlier.facts if path not in self.facts],
            "out_of_reach": [earlier.out_of_reach, self.out_of_reach],
            "is_whole": [earlier.is_whole, self.is_whole],
        }
        data = zlib.compress(json.dumps(form).encode(), level=1)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _out_of_sight(places: Collection[Place]) -> dict[str, str]:
    """Iterators that hide their place and to which a model leads: a forward may take from them.
    From others the script itself takes, in a replay as well."""
    kinds = {type(one.value) for one in places}
    hidden = set(filter(hides_its_place, kinds))
    if not hidden:
        return {}
    models = {kind for kind in kinds if issubclass(kind, nn.Module)}
    below = tuple(f"{one.path}." for one in places if type(one.value) in models)
    found = (one.path for one in places if type(one.value) in hidden)
    return {f"{path}.place": UNSEEN for path in found if path.startswith(below)}


def _large(container: Iterable[Any]) -> list[int]:
    """Numbers among a container's keys or items that may be addresses, if its first one may be."""
    first = next(iter(container), None)
    if type(first) is not int or first <= _ADDRESSES:
        return []
    return [one for one in container if type(one) is int and one > _ADDRESSES]


def _reach(
    frames: Mapping[str, Any], call: Mapping[str, Any] | None, enter: Collection[str] = ()
) -> Reach:
    return Reach(frames, enter, at_last={CALL: call or {}}, all_places=True)


def unpack(packed: torch.Tensor) -> tuple[Census, Census]:
    """Returns the earlier census and the later one of `Census.pack`.

    Raises:
        ValueError: it is not one.
    """
    try:
        form: dict[str, Any] = json.loads(zlib.decompress(packed.numpy().tobytes()))
        earlier = form["earlier"]
        gone = set(form["gone"])
        later = {path: fact for path, fact in earlier.items() if path not in gone}
        later.update(form["changed"])
        first, second = (
            Census(facts=facts, out_of_reach=hidden, is_whole=whole)
            for facts, hidden, whole in zip(
                (earlier, later), form["out_of_reach"], form["is_whole"], strict=True
            )
        )
    except (zlib.error, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a census: {error}") from error
    return first, second
