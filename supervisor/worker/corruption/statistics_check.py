"""Compares running means and variances with what the batches since the last look make of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d, _BatchNorm

from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import Snapshot
from supervisor.worker.corruption.average_check import Bounded
from supervisor.worker.corruption.corrupted_tensor import FEW, GROWN, SMALLEST, CorruptedTensor
from supervisor.worker.corruption.normalisation_watch import (
    Followed,
    NormalisationWatch,
    RunningValues,
    followed_mean,
    followed_variance,
)

MEAN, VARIANCE, COUNT = "running_mean", "running_var", "num_batches_tracked"
_ORDINARY = (BatchNorm1d, BatchNorm2d, BatchNorm3d)
FELL = 0.5
"""A variance below this share of what is left of the earlier one; rounding takes less."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Running values of a normalisation, with its tensors as they were at the last look."""

    model: str
    prefix: str
    values: RunningValues
    kept: Mapping[str, Any]


class StatisticsCheck:
    """Finds elements that no batch can have made, where every batch since the last look was seen
    and nobody else has written.

    A few elements count alone, and only where all others are what the batches make of them. As a
    script may write unseen (``.data``), they count only if they have grown beyond all that went
    in, are not finite, or are a variance that no variances add up to, of a channel that is in use.
    """

    def __init__(self, registry: Registry, watch: NormalisationWatch) -> None:
        self._registry = registry
        self.watch = watch

    def compare(
        self, snapshot: Snapshot, names: Mapping[int, tuple[str, str]]
    ) -> list[CorruptedTensor]:
        """Called at a boundary.

        Args:
            snapshot: of the last look.
            names: address -> model and tensor, as at the last look.
        """
        found: list[CorruptedTensor] = []
        for known in self._known(snapshot, names):
            suspects = _suspects(known.values, (known.kept[MEAN], known.kept[VARIANCE]))
            module = self._module(known) if suspects else None
            if module is None:
                continue
            for leaf in suspects:
                name = f"{known.model}.{known.prefix}{leaf}"
                found += _found(name, leaf, known.values, known.kept[leaf], module.weight)
        return found

    def bounded(
        self, snapshot: Snapshot, names: Mapping[int, tuple[str, str]]
    ) -> Iterator[Bounded]:
        """Yields how far running values can have moved, for averages of them."""
        for known in self._known(snapshot, names):
            for leaf in (MEAN, VARIANCE):
                yield Bounded(
                    name=known.prefix + leaf,
                    then=known.kept[leaf],
                    reach=functools.partial(self._reach, known, leaf),
                    is_sure=True,
                )

    def _reach(self, known: _Known, leaf: str) -> torch.Tensor | None:
        """A running value lies between what it was and the batches' values."""
        if self._module(known) is None:
            return None
        follow = followed_mean if leaf == MEAN else followed_variance
        followed = follow(known.kept[leaf], known.values.statistics)
        return followed.scale + _single(known.kept[leaf]).abs() if followed.is_finite else None

    def _known(self, snapshot: Snapshot, names: Mapping[int, tuple[str, str]]) -> Iterator[_Known]:
        for values in self.watch.known():
            model, name = names.get(values.mean.data_ptr(), ("", ""))
            prefix, _, leaf = name.rpartition(MEAN)
            if leaf or values.mean.numel() < SMALLEST:
                continue
            state = snapshot.state["models"].get(model, {})
            kept = {name: state.get(prefix + name) for name in (MEAN, VARIANCE, COUNT)}
            if _fits(values.mean, kept[MEAN]) and _fits(values.variance, kept[VARIANCE]):
                yield _Known(model, prefix, values, kept)

    def _module(self, known: _Known) -> _BatchNorm | None:
        """Returns whose values they are; None if it has seen batches that we have not."""
        try:
            module = self._registry.models[known.model].get_submodule(
                known.prefix.removesuffix(".")
            )
        except (KeyError, AttributeError):
            return None
        if not isinstance(module, _BatchNorm) or type(module) not in _ORDINARY:
            return None
        values = known.values
        is_its_own = module.running_mean is values.mean and module.running_var is values.variance
        return module if is_its_own and _saw_all(values, module, known.kept[COUNT]) else None


def _saw_all(values: RunningValues, module: _BatchNorm, before: torch.Tensor | None) -> bool:
    """Whether the module has counted as many batches as were seen: a compiled one, or one in
    another thread, is not seen."""
    counted = module.num_batches_tracked
    if counted is None or before is None:
        return False
    # Not `.item()`: this read is ours, and is not on the replay log.
    now = torch._C.TensorBase.item(counted)
    return bool(now - torch._C.TensorBase.item(before) == len(values.batches))


def _fits(now: torch.Tensor, then: torch.Tensor | None) -> bool:
    return then is not None and now.shape == then.shape and now.dtype is then.dtype


def _suspects(values: RunningValues, then: tuple[torch.Tensor, torch.Tensor]) -> list[str]:
    """What must be true of anything that is claimed, without a look at the batches."""
    mean, variance = _single(values.mean), _single(values.variance)
    found = []
    if not _largest(mean) <= GROWN * _largest(_single(then[0])):
        found.append(MEAN)
    before = _single(then[1])
    keep = 1.0
    for batch in values.statistics:
        keep *= 1 - batch.momentum
    least = _least(before, keep)
    if not _largest(variance) <= GROWN * _largest(before) or bool((variance < least).any()):
        found.append(VARIANCE)
    return found


def _found(
    name: str, leaf: str, values: RunningValues, then: torch.Tensor, weight: torch.Tensor | None
) -> list[CorruptedTensor]:
    follow, live = (
        (followed_mean, values.mean) if leaf == MEAN else (followed_variance, values.variance)
    )
    followed = follow(then, values.statistics)
    if not followed.is_finite:
        return []
    now = _single(live)
    differs = followed.differs(now)
    count = int(differs.sum())
    impossible = _impossible(leaf, now, then, followed, weight)
    if not 0 < count <= FEW or not bool(impossible[differs].all()):
        return []
    places = tuple(differs.nonzero().reshape(-1).tolist())
    return [
        CorruptedTensor(
            name=name,
            rule="statistic",
            live=live,
            kept=followed.value.to(live.device, live.dtype),
            places=places,
            count=count,
            bound=float(followed.value[places[0]]),
        )
    ]


def _impossible(
    leaf: str,
    now: torch.Tensor,
    then: torch.Tensor,
    followed: Followed,
    weight: torch.Tensor | None,
) -> torch.Tensor:
    beyond = ~(now.abs() <= GROWN * _largest(followed.scale))
    if leaf == MEAN:
        return beyond
    fell = now < _least(_single(then), followed.keep)
    if weight is not None:
        fell &= _single(weight) != 0
    return beyond | fell


def _least(variance: torch.Tensor, keep: float) -> torch.Tensor:
    """A variance falls by the momentum at each batch at most. A script that begins a channel anew
    writes 1."""
    return FELL * keep * variance.clamp(max=1)


def _largest(values: torch.Tensor) -> float:
    return float(torch._C.TensorBase.item(values.abs().max()))


def _single(values: torch.Tensor) -> torch.Tensor:
    return values.detach().float().cpu()
