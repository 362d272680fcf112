"""Samples that are other ones when they are loaded again: a damaged file, cache or memory.

Digests of a few samples of each data set are kept. Data sets that change on purpose (augmentation,
padding to the longest of a batch, a curriculum) change in many samples, and are left alone. So are
those whose tensors torch has written into: that was the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch.utils.data import Dataset

from supervisor.by_identity import ByIdentity
from supervisor.errors import pass_on
from supervisor.training_state.tensors import tensors_within
from supervisor.worker.ground.interception_state import InterceptionState

WATCHED = 64
"""Samples of a data set, evenly spread."""
STEADY = 32
"""Loads that were equal to earlier ones, before the first that was not; and half as many after."""
MANY = 1000
"""Members of a list that is not searched for tensors."""


@dataclass(slots=True)
class _Known:
    """A data set: `odd` is the sample that changed, after `equal` loads in a row that did not.

    Attributes:
        writes: see `_writes`, when the first batch was loaded.
    """

    watched: frozenset[int]
    writes: ByIdentity[torch.Tensor, int]
    digests: dict[int, str] = field(default_factory=dict)
    equal: int = 0
    odd: int | None = None
    is_over: bool = False


class ChangedSamples:
    """Called when a loader hands out a batch, in the training's own process.

    Args:
        interception: in a replay there are placeholders in the place of batches.
        on_found: told (data set, sample, equal loads of other samples) of the first one that
            changed alone.
    """

    def __init__(
        self, interception: InterceptionState, on_found: Callable[[Any, int, int], None]
    ) -> None:
        self._interception = interception
        self._on_found = on_found
        self._sets: ByIdentity[Any, _Known] = ByIdentity()
        self._is_on = True

    def was_handed_out(self, data: Any, indices: Any, batch: Any) -> None:
        """Never raises: at the first error the watch is over."""
        if not self._is_on or self._interception.replaying:
            return
        try:
            known = self._sets.get(data)
            if known is None:
                known = self._sets[data] = _Known(_spread(len(data)), _writes(data))
            if known.is_over or not isinstance(indices, (list, tuple)):
                return
            found = known.watched.intersection(indices)
            if found:
                with self._interception.region():
                    self._compare(data, known, found, indices, batch)
        except BaseException as error:  # no length, indices that are lists, subclasses ...
            pass_on(error)
            self._is_on = False

    def _compare(
        self, data: Any, known: _Known, found: frozenset[int], indices: Sequence[Any], batch: Any
    ) -> None:
        rows = [indices.index(sample) for sample in found]
        digests = _digests_of_rows(batch, rows, len(indices))
        for sample, now in zip(found, digests, strict=True):
            before = known.digests.setdefault(sample, now)
            if sample == known.odd:
                continue
            if before == now:
                known.equal += 1
            elif known.equal >= STEADY and known.odd is None and _is_unwritten(known.writes, data):
                known.odd, known.equal = sample, 0
            else:
                known.is_over = True  # the data set changes on purpose
                return
            if known.odd is not None and known.equal >= STEADY // 2:
                known.is_over = True
                self._on_found(data, known.odd, STEADY + known.equal)
                return


def _spread(count: int) -> frozenset[int]:
    return frozenset(range(0, count, max(1, count // WATCHED)))


def _is_unwritten(before: ByIdentity[torch.Tensor, int], data: Any) -> bool:
    now = _writes(data)
    return len(now) == len(before) and all(before.get(one) == n for one, n in now.items())


def _writes(data: Any) -> ByIdentity[torch.Tensor, int]:
    """How often torch has written into each tensor that a data set holds."""
    found: ByIdentity[torch.Tensor, int] = ByIdentity()
    for tensor in _tensors_held(data):
        found[tensor] = tensor._version
    return found


def _tensors_held(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor) and not value.is_inference():
        yield value
    inner: Any = ()
    if isinstance(value, Dataset):
        inner = list(vars(value).values())
    elif isinstance(value, (list, tuple)) and len(value) <= MANY:
        inner = value
    for item in inner if depth else ():
        yield from _tensors_held(item, depth - 1)


def _digests_of_rows(batch: Any, rows: list[int], count: int) -> list[str]:
    """Returns a digest of each sample's tensors in a batch that was collated row by row.

    Args:
        rows: places of the samples in the batch.
        count: of all of its samples.
    """
    checksums = [xxhash.xxh3_128() for _ in rows]
    for value in tensors_within(batch):
        if value.dim() and value.shape[0] == count:
            own = value.detach()[rows].cpu().contiguous()
            head = f"{own.dtype} {tuple(own.shape[1:])}".encode()
            data: Any = own.reshape(len(rows), -1).view(torch.uint8).numpy()
            for checksum, row in zip(checksums, data, strict=True):
                checksum.update(head)
                checksum.update(row)
    return [checksum.hexdigest() for checksum in checksums]
