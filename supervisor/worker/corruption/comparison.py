"""Two looks at one tensor's state: what its optimizer cannot have made of it.

Many tensors compared at once: which of them deserve a look at each element.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.corruption.limits import Affine, Limits, Pair

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
    if limits.weight is None:
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
    most = entries[pair.second].clamp(min=0).sqrt_().mul_(pair.constant).add_(pair.slack)
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


Tensors = list[torch.Tensor]

SLICE_BYTES = 64 << 20
"""Of what is copied to a device at a time: a check must not need as much memory there as the
training. At 20 GB/s it takes 3 ms, beside which the calls for a slice do not count."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorCase:
    """One tensor with its entries at two looks, and what lies between them at most; `then` may be
    on the host while `now` is on a device."""

    then: Entries
    now: Entries
    limits: Limits

    def on_one_device(self) -> TensorCase:
        then = {
            key: kept.to(self.now[key].device, non_blocking=True) for key, kept in self.then.items()
        }
        return TensorCase(then, self.now, self.limits)


def suspects(cases: Sequence[TensorCase]) -> list[TensorCase]:
    """Returns the cases in which a largest value is beyond a bound, or is not finite.

    A few calls for all tensors of a type; only `breaches` says what is really beyond.
    """
    kinds: defaultdict[tuple[torch.dtype, torch.device], list[TensorCase]] = defaultdict(list)
    for case in cases:
        kinds[case.now[WEIGHT].dtype, case.now[WEIGHT].device].append(case)
    found: list[TensorCase] = []
    with outside_autograd():
        for alike in kinds.values():
            worst = _Worst()
            for part in _slices(alike):
                worst.look_at(part)
            found += worst.beyond()
    return found


def _slices(cases: Sequence[TensorCase]) -> Iterator[list[TensorCase]]:
    part: list[TensorCase] = []
    size = 0
    for case in cases:
        part.append(case)
        size += sum(kept.nbytes for kept in case.then.values())
        if size >= SLICE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


class _Worst:
    """Largest values, read from the device together."""

    def __init__(self) -> None:
        self._values: Tensors = []
        self._lines: list[float] = []
        self._cases: list[TensorCase] = []
        self._given: dict[int, TensorCase] = {}  # by the id of its copy on the device

    def look_at(self, given: list[TensorCase]) -> None:
        cases = [case.on_one_device() for case in given]
        self._given = dict(zip(map(id, cases), given, strict=True))
        self.moved(cases)
        self.fell(cases)
        self.paired(cases)
        self.remembered(cases)

    def moved(self, cases: list[TensorCase]) -> None:
        bounded = [case for case in cases if case.limits.weight is not None]
        if not bounded:
            return
        lines = [case.limits.weight.constant for case in bounded if case.limits.weight]
        then = [case.then[WEIGHT] for case in bounded]
        moved = torch._foreach_sub([case.now[WEIGHT] for case in bounded], then)
        self._add(bounded, _largest_size(list(moved)), lines)

    def fell(self, cases: list[TensorCase]) -> None:
        for name in {name for case in cases for name in case.limits.floors}:
            there = [c for c in cases if name in c.limits.floors and name in c.then.keys() & c.now]
            if not there:
                continue
            floors = [case.limits.floors[name] for case in there]
            least = torch._foreach_mul([c.then[name] for c in there], [f.factor for f in floors])
            torch._foreach_sub_(least, [case.now[name] for case in there])
            self._add(there, _largest(list(least)), [floor.slack for floor in floors])

    def paired(self, cases: list[TensorCase]) -> None:
        there = [
            (case, pair)
            for case in cases
            if (pair := case.limits.pair) and {pair.first, pair.second} <= case.now.keys()
        ]
        if there:
            most = torch._foreach_sqrt([case.now[pair.second] for case, pair in there])
            torch._foreach_mul_(most, [pair.constant for _, pair in there])
            size = torch._foreach_abs([case.now[pair.first] for case, pair in there])
            torch._foreach_sub_(size, most)
            self._add([c for c, _ in there], _largest(list(size)), [p.slack for _, p in there])

    def remembered(self, cases: list[TensorCase]) -> None:
        there = [c for c in cases if c.limits.memory_limit and c.limits.memory in c.now]
        if there:
            lines = [
                case.limits.memory_limit.constant for case in there if case.limits.memory_limit
            ]
            self._add(there, _largest_size([c.now[c.limits.memory] for c in there]), lines)

    def beyond(self) -> list[TensorCase]:
        if not self._values:
            return []
        values = torch.stack([value.float() for value in self._values]).tolist()
        found = zip(values, self._lines, self._cases, strict=True)
        over = {id(case): case for value, line, case in found if not value <= line}
        return list(over.values())

    def _add(self, cases: list[TensorCase], values: Tensors, lines: list[float]) -> None:
        self._values += values
        self._lines += lines
        self._cases += [self._given[id(case)] for case in cases]  # their copies are let go


_foreach_max: Callable[[Tensors], Sequence[torch.Tensor]] = torch._foreach_max


def _largest(tensors: Tensors) -> Tensors:
    return list(_foreach_max(tensors))


def _largest_size(tensors: Tensors) -> Tensors:
    # Not `_foreach_norm`: on CPUs its infinite norm takes several times as long.
    return _largest(list(torch._foreach_abs(tensors)))
