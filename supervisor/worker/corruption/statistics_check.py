"""Compares running means and variances with what the batches since the last look make of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d, _BatchNorm

from supervisor.training_state.bounds.running_statistics import (
    Followed,
    followed_mean,
    followed_variance,
)
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import Snapshot
from supervisor.worker.corruption.claims import FEW, GROWN, SMALLEST
from supervisor.worker.corruption.corrupted_tensor import CorruptedTensor
from supervisor.worker.corruption.normalisation_watch import NormalisationWatch, RunningValues

MEAN, VARIANCE, COUNT = "running_mean", "running_var", "num_batches_tracked"
_ORDINARY = (BatchNorm1d, BatchNorm2d, BatchNorm3d)
FELL = 0.5
"""A variance below this share of what is left of the earlier one; rounding takes less."""


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
        for values in self.watch.known():
            model, name = names.get(values.mean.data_ptr(), ("", ""))
            prefix, _, leaf = name.rpartition(MEAN)
            kept = snapshot.state["models"].get(model, {})
            if leaf or not kept or values.mean.numel() < SMALLEST:
                continue
            then = kept.get(prefix + MEAN), kept.get(prefix + VARIANCE)
            if not (_fits(values.mean, then[0]) and _fits(values.variance, then[1])):
                continue
            suspects = _suspects(values, then)
            module = self._module(values, model, prefix) if suspects else None
            if module is None or not _saw_all(values, module, kept.get(prefix + COUNT)):
                continue
            for leaf in suspects:
                name = f"{model}.{prefix}{leaf}"
                found += _found(name, leaf, values, kept[prefix + leaf], module.weight)
        return found

    def _module(self, values: RunningValues, model: str, prefix: str) -> _BatchNorm | None:
        try:
            module = self._registry.models[model].get_submodule(prefix.removesuffix("."))
        except (KeyError, AttributeError):
            return None
        if not isinstance(module, _BatchNorm) or type(module) not in _ORDINARY:
            return None
        is_its_own = module.running_mean is values.mean and module.running_var is values.variance
        return module if is_its_own else None


def _saw_all(values: RunningValues, module: _BatchNorm, before: torch.Tensor | None) -> bool:
    """Whether the module has counted as many batches as were seen: a compiled one, or one in
    another thread, is not seen."""
    counted = module.num_batches_tracked
    if counted is None or before is None:
        return False
    # Not `.item()`: this read is ours, and is not on the tape.
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
    for batch in values.batches:
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
    followed = follow(then, values.batches)
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
