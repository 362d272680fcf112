"""Two looks at one tensor's state: what its optimizer cannot have made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from supervisor.training_state.bounds.limits import Affine, Limits, Pair
from supervisor.training_state.tensors import outside_autograd

WEIGHT = ""
"""Entry under which the tensor itself is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """An entry with elements beyond a bound.

    Attributes:
        entry: of the optimizer's state, or `WEIGHT`.
        rule: ``moved``, ``memory``, ``fell``, ``negative``, ``pair`` or ``not finite``.
        places: of the elements, flat, the worst first; `SHOWN` at most.
        count: how many elements they are.
        bound: of the worst element: how far it can have moved, or the least or most it can be.
    """

    entry: str
    rule: str
    places: tuple[int, ...]
    count: int
    bound: float


SHOWN = 16

Entries = Mapping[str, torch.Tensor]
"""The tensor (`WEIGHT`) and its entries in the optimizer; on one device."""


def breaches(then: Entries, now: Entries, limits: Limits) -> list[Breach]:
    """Returns what lies beyond `limits`; an entry that one side lacks is not compared.

    Elements that are not finite on either side are passed by.
    """
    found: list[Breach | None] = []
    with outside_autograd():
        then, now = _single(then), _single(now)
        held = limits.pair is None or _held(then, limits.pair)
        if limits.weight is not None and held:
            found.append(_moved(then, now, limits, limits.weight))
        if limits.memory_limit is not None and limits.memory in now:
            found.append(_memory(then, now, limits, limits.memory_limit))
        for entry, floor in limits.floors.items():
            if entry in then and entry in now:
                # A falling value's bound is that of the value before; a new one has none.
                least = then[entry] * (floor.factor * (1 - _SLACK)) - floor.slack
                found.append(_beyond(entry, "fell", least - now[entry], least))
        for entry in limits.positive & now.keys():
            found.append(_beyond(entry, "negative", -now[entry], torch.zeros(())))
        if limits.pair is not None and held:
            found.append(_pair(now, limits.pair))
    return [breach for breach in found if breach is not None]


_SLACK = 1e-5


def reach(then: Entries, limits: Limits) -> torch.Tensor | None:
    """Returns how far each element of a tensor can have moved, FP32; None where that is not known
    from the first look alone.

    It holds after each of the updates in between, too: every one of them only adds to it.
    """
    if limits.weight is None or limits.root is not None:
        return None
    with outside_autograd():
        single = _single(then)
        if limits.pair is not None and not _held(single, limits.pair):
            return None
        return _limit(single, limits.memory, limits.weight)


def _single(entries: Entries) -> Entries:
    """Bounds of 16-bit values are computed in FP32, where they are not rounded away."""
    return {key: value.float() for key, value in entries.items() if value.is_floating_point()}


def _held(entries: Entries, pair: Pair) -> bool:
    return pair.first not in entries or _pair(entries, pair) is None


def _moved(then: Entries, now: Entries, limits: Limits, bound: Affine) -> Breach | None:
    moved = (now[WEIGHT] - then[WEIGHT]).abs_()
    if moved.numel() == 0 or float(moved.max()) <= bound.constant:
        return None  # nearly always
    limit = _limit(then, limits.memory, bound)
    if limits.root is not None:
        root = now.get(limits.root.entry)
        if root is None:
            return None
        limit = limit + root.clamp(min=0).sqrt() * limits.root.factor
    return _beyond(WEIGHT, "moved", moved - limit, limit)


def _memory(then: Entries, now: Entries, limits: Limits, bound: Affine) -> Breach | None:
    size = now[limits.memory].abs()
    if size.numel() == 0 or float(size.max()) <= bound.constant:
        return None
    limit = _limit(then, limits.memory, bound)
    return _beyond(limits.memory, "memory", size - limit, limit)


def _limit(then: Entries, memory: str, bound: Affine) -> torch.Tensor:
    limit = then[WEIGHT].abs() * bound.of_weight + bound.constant
    if bound.of_memory and memory in then:
        limit += then[memory].abs() * bound.of_memory
    return limit


def _pair(entries: Entries, pair: Pair) -> Breach | None:
    if pair.first not in entries or pair.second not in entries:
        return None
    second = entries[pair.second]
    most = second.clamp(min=0)
    most = (most.sqrt_() if pair.is_root else most).mul_(pair.constant).add_(pair.slack)
    return _beyond(pair.first, "pair", entries[pair.first].abs() - most * (1 + 1e-3), most)


def _beyond(entry: str, rule: str, excess: torch.Tensor, bound: torch.Tensor) -> Breach | None:
    """A breach where `excess` is positive and finite."""
    if excess.numel() == 0 or not (float(excess.max()) > 0.0 or _has_nan(excess)):
        return None
    flat = excess.reshape(-1).float().nan_to_num(nan=-math.inf, posinf=-math.inf)
    count = int((flat > 0).sum())
    if not count:
        return None
    places = torch.topk(flat, min(count, SHOWN)).indices.tolist()
    bounds = bound.reshape(-1)
    worst = float(bounds[places[0]] if bounds.numel() > 1 else bounds[0])
    return Breach(entry=entry, rule=rule, places=tuple(places), count=count, bound=worst)


def _has_nan(excess: torch.Tensor) -> bool:
    return bool(torch.isnan(excess.max()))
