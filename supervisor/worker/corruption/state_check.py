"""Compares the live state with the newest snapshot: what no update can have done."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.training_state.bounds.batch import TensorCase, suspects
from supervisor.training_state.bounds.comparison import WEIGHT, Breach, breaches
from supervisor.training_state.bounds.limits import Affine, Limits
from supervisor.training_state.bounds.rounding import Rounding
from supervisor.training_state.bounds.update_log import UpdateLog
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import Snapshot
from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.corruption.average_check import AverageCheck, Bounded
from supervisor.worker.corruption.claims import claimed
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor
from supervisor.worker.corruption.other_rules import not_finite, wrong_count
from supervisor.worker.corruption.statistics_check import StatisticsCheck
from supervisor.worker.corruption.still_weights import StillWeights
from supervisor.worker.corruption.update_watch import UpdateWatch, Versions, WatchedOptimizer
from supervisor.worker.corruption.usual_moves import UsualMoves, WeightAndCopy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tensor:
    """A parameter that only its optimizer has written to since the last look."""

    name: str
    parameter: str
    live: Mapping[str, torch.Tensor]
    kept: Mapping[str, torch.Tensor]
    counter: CorruptedTensor | None
    case: TensorCase


class StateCheck:
    """Finds what is beyond a bound where every condition of the bound's proof is met.

    Args:
        watch: knows the updates since the snapshot.
    """

    def __init__(self, registry: Registry, watch: UpdateWatch) -> None:
        self._registry = registry
        self.watch = watch
        self._averages = AverageCheck()
        self._statistics = StatisticsCheck(registry, watch.normalisation)
        self._still = StillWeights(registry)
        self._usual = UsualMoves()
        self._names: dict[int, tuple[str, str]] = {}  # by address: model and parameter

    def looked(self, state: Mapping[str, Any]) -> None:
        """The snapshot of this boundary was taken: what follows is compared with it.

        Args:
            state: what was copied, live.
        """
        self.watch.looked()
        self._averages.looked(state)
        self._still.looked()
        self._names = {
            tensor.data_ptr(): (model, name)
            for model, tensors in state["models"].items()
            for name, tensor in tensors.items()
        }

    def compare(self, snapshot: Snapshot, step: int) -> list[CorruptedTensor]:
        """Called at a boundary.

        Args:
            snapshot: of the last look.
            step: of this boundary.
        """
        found: list[CorruptedTensor] = []
        bounded: list[Bounded] = []
        with outside_autograd():
            for watched in self.watch.watched():
                optimizer = watched.optimizer()
                if optimizer is None or watched.is_broken or not watched.count:
                    continue
                kept = snapshot.state["optimizers"].get(self._name_of(optimizer))
                if kept is None or watched.written is None:
                    continue
                tensors = list(self._tensors(watched, optimizer, kept, snapshot.state["models"]))
                mine = self._beyond(watched, tensors)
                is_sure = watched.is_sure
                found += mine if is_sure else []
                bounded += [
                    Bounded.weight(tensor.parameter, tensor.case, is_sure=is_sure)
                    for tensor in tensors
                ]
            bounded += self._statistics.bounded(snapshot, self._names)
            found += self._averages.compare(snapshot, step - snapshot.step, bounded)
            found += self._statistics.compare(snapshot, self._names)
            found += self._still.compare(snapshot)
        return found

    def unusual(self, snapshot: Snapshot) -> list[str]:
        """Returns what to warn of: moves of weights for which there is no bound.

        Args:
            snapshot: of the last look.
        """
        return self._usual.compare(
            [
                WeightAndCopy(f"{model}.{name}", parameter, kept)
                for parameter in self.watch.unbounded()
                for model, name in [self._names.get(parameter.data_ptr(), ("", ""))]
                if (kept := snapshot.state["models"].get(model, {}).get(name)) is not None
            ]
        )

    def _beyond(self, watched: WatchedOptimizer, tensors: list[_Tensor]) -> list[CorruptedTensor]:
        by_case = {id(tensor.case): tensor for tensor in tensors}
        found = [tensor.counter for tensor in tensors if tensor.counter is not None]
        for case in suspects([tensor.case for tensor in tensors if tensor.counter is None]):
            tensor = by_case[id(case)]
            beyond = breaches(case.then, case.now, case.limits)
            if watched.norms_are_finite:
                beyond += not_finite(case)
            found += [_finding(tensor, breach) for breach in claimed(case, beyond)]
        return found

    def _tensors(
        self,
        watched: WatchedOptimizer,
        optimizer: Optimizer,
        kept: Mapping[str, Any],
        models: Mapping[str, Any],
    ) -> Iterator[_Tensor]:
        limits = _LimitsOfGroups(watched)
        index = -1
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                index += 1
                if index >= len(watched.parameters) or parameter is not watched.parameters[index]:
                    return
                model, name = self._names.get(parameter.data_ptr(), ("", f"parameter {index}"))
                before = models[model].get(name) if model else kept["parameters"].get(index)
                if before is None or watched.places[index] != parameter.data_ptr():
                    continue
                now = {WEIGHT: parameter.detach(), **optimizer.state.get(parameter, {})}
                then = {WEIGHT: before, **kept["state"].get(index, {})}
                tensor = _tensor(watched, index, number, (model, name), now, then, limits)
                if tensor is not None:
                    yield tensor

    def _name_of(self, optimizer: Optimizer) -> str:
        optimizers = self._registry.optimizers.items()
        return next((name for name, other in optimizers if other is optimizer), "")


class _LimitsOfGroups:
    """Computes the limits of tensors that have the same updates once."""

    def __init__(self, watched: WatchedOptimizer) -> None:
        self._watched = watched
        self._updates: dict[int, Any] = {}
        self._known: dict[tuple[Any, ...], Limits | None] = {}

    def of(
        self,
        group: int,
        dtype: torch.dtype,
        start: int,
        took_all: bool,
        has_memory: bool,
        shape: tuple[int, ...],
    ) -> Limits | None:
        key = (group, dtype, start, took_all, has_memory, shape)
        if key not in self._known:
            self._known[key] = self._compute(*key)
        return self._known[key]

    def _compute(
        self,
        group: int,
        dtype: torch.dtype,
        start: int,
        took_all: bool,
        has_memory: bool,
        shape: tuple[int, ...],
    ) -> Limits | None:
        rounding = Rounding.of(dtype)
        if group not in self._updates:
            self._updates[group] = self._watched.updates(group)
        if rounding is None:
            return None
        log = UpdateLog(
            updates=self._updates[group],
            took_all=took_all,
            start=start,
            has_memory=has_memory,
            rounding=rounding,
            shape=shape,
        )
        try:
            return self._watched.family.limits(log)
        except (TypeError, ValueError, KeyError, OverflowError, ZeroDivisionError):
            return None  # a group that holds tensors, or what torch would not take


def _tensor(
    watched: WatchedOptimizer,
    index: int,
    group: int,
    called: tuple[str, str],
    now: Mapping[str, Any],
    then: Mapping[str, Any],
    limits: _LimitsOfGroups,
) -> _Tensor | None:
    assert watched.written is not None
    counts, made = watched.family.counts, watched.count
    written, versions = watched.written[index], watched.versions[index]
    start, taken, counter = 0, made, None
    name = ".".join(filter(None, called))
    if counts:
        start = _count(then, counts)
        taken = _count(now, counts) - start
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
    kept = {key: then[key].to(live[key].device, non_blocking=True) for key in live}
    has_memory = len(then) > 1
    weight = live[WEIGHT]
    limit: Limits | None = _STILL
    if taken:
        shape = tuple(weight.shape) if watched.family.needs_shape else ()
        limit = limits.of(group, weight.dtype, start, taken == made, has_memory, shape)
    if limit is None:
        return None
    if limit.memory in {**then, **now} and limit.memory not in live:
        if limit.weight is None or limit.weight.of_memory:
            return None  # somebody else wrote to the momentum
        limit = replace(limit, memory="", memory_limit=None)
    pair = limit.pair
    if has_memory and pair is not None and not {pair.first, pair.second} <= live.keys():
        return None  # the same for the moments, of which the bound of the weight is made
    return _Tensor(
        name=name,
        parameter=called[1],
        live=live,
        kept=kept,
        counter=counter,
        case=TensorCase(kept, live, limit),
    )


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


def _count(entries: Mapping[str, Any], counts: str) -> int:
    value = entries.get(counts, 0)
    if isinstance(value, torch.Tensor):
        value = torch._C.TensorBase.item(value)
    return int(value) if math.isfinite(value) else -1


def _finding(tensor: _Tensor, breach: Breach) -> CorruptedTensor:
    entry = breach.entry
    others = [key for key in tensor.live if key not in (entry, WEIGHT)] if entry else []
    return CorruptedTensor(
        name=f"{tensor.name} {entry}".strip(),
        rule=breach.rule,
        live=tensor.live[entry],
        kept=tensor.kept[entry],
        places=breach.places,
        count=breach.count,
        bound=breach.bound,
        siblings=tuple((tensor.live[key], tensor.kept[key]) for key in others),
    )
