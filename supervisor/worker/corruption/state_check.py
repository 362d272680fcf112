"""Compares the live state with the newest snapshot: what no update can have done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.optim import Optimizer

from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import Snapshot
from supervisor.training_state.tensors import outside_autograd
from supervisor.worker.corruption.average_check import AverageCheck, Bounded
from supervisor.worker.corruption.bounded_tensors import (
    BoundedTensor,
    LimitsOfKinds,
    bounded_tensor,
    not_finite,
    read_counts,
)
from supervisor.worker.corruption.comparison import WEIGHT, Breach, breaches, suspects
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor, claimed
from supervisor.worker.corruption.statistics_check import StatisticsCheck
from supervisor.worker.corruption.still_weights import StillWeights
from supervisor.worker.corruption.update_watch import UpdateWatch, WatchedOptimizer


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
        # By address: model and parameter. Good for memory that was there at the look and has been
        # held since: that of watched parameters and normalisations.
        self._names: dict[int, tuple[str, str]] = {}

    def checked(self, state: Mapping[str, Any]) -> None:
        """The snapshot of this boundary was taken: what follows is compared with it.

        Args:
            state: what was copied, live.
        """
        self.watch.checked()
        self._averages.checked(state)
        self._still.checked()
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

    def _beyond(
        self, watched: WatchedOptimizer, tensors: list[BoundedTensor]
    ) -> list[CorruptedTensor]:
        by_case = {id(tensor.case): tensor for tensor in tensors}
        found = [tensor.counter for tensor in tensors if tensor.counter is not None]
        for suspect in suspects([tensor.case for tensor in tensors if tensor.counter is None]):
            tensor, case = by_case[id(suspect)], suspect.on_one_device()
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
    ) -> Iterator[BoundedTensor]:
        limits = LimitsOfKinds(watched)
        counts = read_counts(optimizer, watched.family.counts) if watched.family.counts else {}
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
                counted = counts.get(id(parameter), 0)
                tensor = bounded_tensor(
                    watched, index, number, (model, name), now, then, limits, counted
                )
                if tensor is not None:
                    yield tensor

    def _name_of(self, optimizer: Optimizer) -> str:
        optimizers = self._registry.optimizers.items()
        return next((name for name, other in optimizers if other is optimizer), "")


def _finding(tensor: BoundedTensor, breach: Breach) -> CorruptedTensor:
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
