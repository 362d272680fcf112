"""The parameters of which bounds are claimed: all that is needed for a proof holds.

What no update can do, whatever its optimizer is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from supervisor.worker.corruption.comparison import WEIGHT, Breach, TensorCase
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor
from supervisor.worker.corruption.limits import Affine, Limits, Rounding, UpdateLog
from supervisor.worker.corruption.update_watch import Versions, WatchedOptimizer


def wrong_count(
    name: str, now: Mapping[str, Any], then: Mapping[str, Any], counts: str, wanted: int
) -> CorruptedTensor | None:
    """Returns a counter of updates that is not what it must be."""
    live, kept = now.get(counts), then.get(counts)
    if not isinstance(live, torch.Tensor) or not isinstance(kept, torch.Tensor):
        return None
    return CorruptedTensor(
        name=f"{name} {counts}",
        rule="counter",
        live=live,
        kept=torch.full_like(kept, wanted),
        places=(0,),
        count=1,
        bound=float(wanted),
    )


def not_finite(case: TensorCase) -> list[Breach]:
    """Elements that became NaN or infinite although all gradients were finite."""
    found: list[Breach] = []
    for entry in case.now:
        bad = ~torch.isfinite(case.now[entry]).reshape(-1)
        count = int(bad.sum())
        if count and bool(torch.isfinite(case.then[entry]).all()):
            places = tuple(bad.nonzero().reshape(-1)[:16].tolist())
            found.append(
                Breach(entry=entry, rule="not finite", places=places, count=count, bound=math.nan)
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundedTensor:
    """A parameter that only its optimizer has written to since the last look."""

    name: str
    parameter: str
    live: Mapping[str, torch.Tensor]
    kept: Mapping[str, torch.Tensor]  # on the host
    counter: CorruptedTensor | None
    case: TensorCase


class Kind(NamedTuple):
    """What tensors have in common that have the same limits."""

    group: int
    dtype: torch.dtype
    start: int
    took_all: bool
    has_memory: bool
    shape: tuple[int, ...]


class LimitsOfKinds:
    """Computes the limits of tensors that have the same updates once."""

    def __init__(self, watched: WatchedOptimizer) -> None:
        self._watched = watched
        self._updates: dict[int, Any] = {}
        self._known: dict[Kind, Limits | None] = {}

    def of(self, kind: Kind) -> Limits | None:
        if kind not in self._known:
            self._known[kind] = self._compute(kind)
        return self._known[kind]

    def _compute(self, kind: Kind) -> Limits | None:
        rounding = Rounding.of(kind.dtype)
        if rounding is None:
            return None
        if kind.group not in self._updates:
            self._updates[kind.group] = self._watched.updates(kind.group)
        log = UpdateLog(
            updates=self._updates[kind.group],
            took_all=kind.took_all,
            start=kind.start,
            has_memory=kind.has_memory,
            rounding=rounding,
            shape=kind.shape,
        )
        try:
            return self._watched.family.limits(log)
        except (TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError):
            return None  # a group that holds tensors, or what torch would not take


def bounded_tensor(
    watched: WatchedOptimizer,
    index: int,
    group: int,
    called: tuple[str, str],
    now: Mapping[str, Any],
    then: Mapping[str, Any],
    limits: LimitsOfKinds,
    counted: int,
) -> BoundedTensor | None:
    """Returns a parameter with what is claimed of it; None where a condition is not met.

    Args:
        watched: its optimizer, with the writes that were counted.
        index: of the parameter among all of the optimizer.
        group: of the parameter.
        called: the names of the model and the parameter.
        now: the weight and the optimizer's entries, live.
        then: the same, as they were at the last look.
        counted: updates, by the optimizer's own count as it is now (`read_counts`).
    """
    assert watched.written is not None
    counts, made = watched.family.counts, watched.count
    written, versions = watched.written[index], watched.versions[index]
    start, taken, counter = 0, made, None
    name = ".".join(filter(None, called))
    if counts:
        start = _count(then.get(counts, 0))
        taken = counted - start
        if taken > made and _wrote(now, versions, written, made, counts):
            # The writes are those of all updates, and the count is not. (A script may set it back.)
            counter = wrong_count(name, now, then, counts, start + made)
            taken = made
    if taken < 0 or not _wrote(now, versions, written, taken, ""):
        return None
    alone = {
        key
        for key in now
        if (key != counts or not counts)
        and key in then
        and _wrote(now, versions, written, taken, key)
    }
    live = {key: now[key] for key in alone if _fits(now[key], then[key])}
    if WEIGHT not in live:
        return None
    kept = {key: then[key] for key in live}
    has_memory = len(then) > 1
    weight = live[WEIGHT]
    limit: Limits | None = _STILL
    if taken:
        shape = tuple(weight.shape) if watched.family.needs_shape else ()
        limit = limits.of(Kind(group, weight.dtype, start, taken == made, has_memory, shape))
    limit = None if limit is None else _left_of(limit, {*then, *now}, live, has_memory)
    if limit is None:
        return None
    return BoundedTensor(
        name=name,
        parameter=called[1],
        live=live,
        kept=kept,
        counter=counter,
        case=TensorCase(kept, live, limit),
    )


def _left_of(
    limit: Limits, entries: Set[str], live: Container[str], has_memory: bool
) -> Limits | None:
    """Returns what is claimed where only the entries in `live` are the optimizer's alone; None
    where the bound of the weight is made of others."""
    if limit.memory in entries and limit.memory not in live:
        if limit.weight is None or limit.weight.of_memory:
            return None  # somebody else wrote to the momentum
        limit = replace(limit, memory="", memory_limit=None)
    pair = limit.pair
    if has_memory and pair is not None and not (pair.first in live and pair.second in live):
        return None
    return limit


_STILL = Limits(weight=Affine())
"""Of a tensor that had no gradient: nobody has written to it."""


def _wrote(
    now: Mapping[str, Any], versions: Versions, written: Versions, times: int, key: str
) -> bool:
    """Whether an entry was written to by its optimizer's updates and by nobody else."""
    if key not in versions or key not in written or not isinstance(now[key], torch.Tensor):
        return False
    return int(now[key]._version) == versions[key] + times * written[key]


def _fits(now: torch.Tensor, then: Any) -> bool:
    return (
        isinstance(then, torch.Tensor)
        and now.shape == then.shape
        and now.dtype is then.dtype
        and now.layout is torch.strided
    )


def read_counts(optimizer: Optimizer, counts: str) -> dict[int, int]:
    """Returns the optimizer's own count of updates by the id of the parameter; those on a device,
    as fused optimizers keep them, with one wait for all."""
    kept = {id(p): state[counts] for p, state in optimizer.state.items() if counts in state}
    on_device: dict[Any, list[int]] = {}
    for key, value in kept.items():
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            on_device.setdefault((value.device, value.shape, value.dtype), []).append(key)
    for keys in on_device.values():
        kept |= zip(keys, torch.Tensor.tolist(torch.stack([kept[k] for k in keys])), strict=True)
    return {key: _count(value) for key, value in kept.items()}


def _count(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        value = torch._C.TensorBase.item(value)
    return int(value) if math.isfinite(value) else -1
