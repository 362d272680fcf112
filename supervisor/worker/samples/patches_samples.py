"""The patches by which samples are named and left out, in every process that loads."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

from torch.utils.data import dataloader
from torch.utils.data._utils import fetch as fetching

from supervisor.worker.samples.sample_guard import SampleGuard


def watch_samples(guard: SampleGuard) -> None:
    """Patches torch for the rest of this process's life."""
    fetcher: Any = fetching._MapDatasetFetcher
    original, begin = fetcher.fetch, fetcher.__init__

    @functools.wraps(begin)
    def __init__(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, dataset, *args, **kwargs)
        self._poisoned = guard.known_to_a_new_iterator(dataset)

    @functools.wraps(original)
    def fetch(self: Any, indices: Any) -> Any:
        if self._poisoned:
            indices = guard.without_poisoned(self, indices)
        try:
            return original(self, indices)
        except Exception as error:
            return guard.after_failure(self, indices, error, original)

    fetcher.__init__, fetcher.fetch = __init__, fetch
    watch_handed_out(guard)


def watch_handed_out(guard: SampleGuard) -> None:
    """Has torch's loaders tell of which samples each batch was made."""
    base: Any = dataloader._BaseDataLoaderIter
    next_index, reset = base._next_index, base._reset

    def _next_index(self: Any) -> Any:
        index = next_index(self)
        self.__dict__.setdefault("_in_flight", deque()).append(index)
        return index

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        self.__dict__.pop("_in_flight", None)
        reset(self, loader, first_iter)

    base._next_index, base._reset = _next_index, _reset
    _patch_handing_out(dataloader._SingleProcessDataLoaderIter, guard)
    _patch_handing_out(dataloader._MultiProcessingDataLoaderIter, guard)


def _patch_handing_out(iterator: Any, guard: SampleGuard) -> None:
    next_data, samples = iterator._next_data, guard.poisoned

    def _next_data(self: Any) -> Any:
        try:
            batch = next_data(self)
        except StopIteration:
            raise
        except BaseException:
            _taken(self)
            raise
        indices = _taken(self)
        if self._dataset_kind == dataloader._DatasetKind.Map and _is_in_order(self):
            samples.was_handed_out(self._dataset, self._collate_fn, indices, batch)
        return batch

    iterator._next_data = _next_data


def _is_in_order(iterator: Any) -> bool:
    return bool(getattr(iterator, "_in_order", True))


def _taken(iterator: Any) -> Any:
    in_flight = iterator.__dict__.get("_in_flight")
    return in_flight.popleft() if in_flight else None
