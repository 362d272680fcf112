"""Weights and buffers that nothing changes: what nobody has written to is what it was.

Frozen layers, target networks between two updates, tables. No optimizer moves them and torch counts
the script's writes, so any other change is a fault, or a write that torch does not count. A script
that writes so does it at whole tensors, or keeps doing it.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.modules.batchnorm import _NormBase

from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import Snapshot
from supervisor.worker.corruption.corrupted_tensor import FEW, GROWN, SMALLEST, CorruptedTensor

STILL = 3
"""Windows between looks in which it has not changed by a bit, or only by counted writes."""

_BITS = {4: torch.int32, 2: torch.int16, 8: torch.int64}
_TYPES = (torch.nn.Parameter, torch.Tensor)
_writes: Callable[[torch.Tensor], int] = operator.attrgetter("_version")


@dataclass(slots=True, eq=False)
class _Still:
    tensor: weakref.ref[torch.Tensor]
    place: int
    writes: int
    windows: int = 0


class StillWeights:
    """Finds elements of such tensors that have changed by one bit each, or grown out of theirs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[tuple[str, str], _Still] = {}

    def checked(self) -> None:
        """The snapshot of this boundary was taken: what follows is compared with it."""
        known, self._known = self._known, {}
        for key, tensor in self._untrained():
            before = known.get(key)
            if before is None or before.tensor() is not tensor:
                before = _Still(weakref.ref(tensor), 0, 0)
            before.place, before.writes = tensor.data_ptr(), _writes(tensor)
            self._known[key] = before

    def compare(self, snapshot: Snapshot) -> list[CorruptedTensor]:
        """Called at a boundary.

        Args:
            snapshot: of the last look.
        """
        found = []
        for (model, name), still in self._known.items():
            live, kept = still.tensor(), snapshot.state["models"].get(model, {}).get(name)
            if live is None or not _fits(live, kept) or live.data_ptr() != still.place:
                continue
            if _writes(live) != still.writes:
                continue  # the script's: a target network has taken over other weights
            now, then = live.detach(), kept.to(live.device)
            if torch.equal(now, then):
                still.windows += 1
                continue
            finding = _finding(f"{model}.{name}", now, then) if still.windows >= STILL else None
            still.windows = 0 if finding is None else still.windows
            found += [] if finding is None else [finding]
        return found

    def _untrained(self) -> Iterator[tuple[tuple[str, str], torch.Tensor]]:
        trained = {
            id(parameter)
            for optimizer in self._registry.optimizers.values()
            for parameter in optimizer_parameters(optimizer)
        }
        for model, module in self._registry.models.items():
            for path, part in module.named_modules():
                if isinstance(part, _NormBase):
                    continue  # torch does not count what it writes to running values
                owned = {**part._parameters, **part._buffers}
                for name, tensor in owned.items():
                    if tensor is not None and id(tensor) not in trained and _is_plain(tensor):
                        yield (model, f"{path}.{name}" if path else name), tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in _TYPES
        and tensor.is_floating_point()
        and tensor.element_size() in _BITS
        and tensor.numel() >= SMALLEST
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_inference()
        and not (tensor.device.type == "cpu" and tensor.is_shared())
    )


def _fits(live: torch.Tensor, kept: object) -> bool:
    return isinstance(kept, torch.Tensor) and live.shape == kept.shape and live.dtype is kept.dtype


def _finding(name: str, now: torch.Tensor, then: torch.Tensor) -> CorruptedTensor | None:
    """Returns what has changed, if it is what memory does that breaks."""
    bits = _BITS[now.element_size()]
    changed = now.reshape(-1).view(bits) ^ then.reshape(-1).view(bits)
    places = changed.nonzero().reshape(-1)
    if len(places) > FEW:
        return None
    value, largest = now.reshape(-1)[places], then.abs().max()
    one_bit = (changed[places] & (changed[places] - 1)) == 0
    if not bool((one_bit | ~(value.abs() <= GROWN * largest)).all()):
        return None
    listed = tuple(places.tolist())
    return CorruptedTensor(
        name=name, rule="still", live=now, kept=then, places=listed, count=len(listed), bound=0.0
    )
