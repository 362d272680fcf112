"""The patches by which batches are seen while they are fetched: `fast_forward.skip_loading`.

Without loader workers each batch is seen on its own. What workers load depends on their random
generators, which go on from batch to batch and are seeded anew for each epoch: so a fast-forward
leaves out whole epochs of theirs, those that had ended well before its target.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import fetch as fetching

from supervisor.worker.interception.instrument import Seen
from supervisor.worker.interception.skipped_epoch import SkippedEpoch
from supervisor.worker.recording.loading_proof import LoadingProof, LoadingProofs


def watch_fetches(session: Seen, proofs: LoadingProofs) -> None:
    """Patches torch for the rest of this process's life. Called once, after `instrument`.

    What loader workers do cannot be watched from here: theirs is left out on a promise only.
    """
    _patch_fetcher(session, proofs)
    if proofs.promise is not None:
        _patch_workers(session, proofs.promise)
        _patch_iterators(session, proofs.promise)


def _patch_fetcher(session: Seen, proofs: LoadingProofs) -> None:
    fetcher: Any = fetching._MapDatasetFetcher
    original = fetcher.fetch
    interception = session.interception

    @functools.wraps(original)
    def fetch(self: Any, indices: Any) -> Any:
        if not interception.is_ours():
            return original(self, indices)
        proof = self.__dict__.get("_proof")
        if proof is None:  # a fetcher lives for an epoch
            proof = self._proof = proofs.of(self)
        if proof.is_given_up:
            return original(self, indices)
        load = functools.partial(original, self, indices)
        return session.hooks.fetch(proof, indices, load, must_load=False)

    fetcher.fetch = fetch


def _patch_workers(session: Seen, promise: LoadingProof) -> None:
    """The indices of a batch are noted when they are drawn, and used when it is handed out."""
    iterator: Any = dataloader._MultiProcessingDataLoaderIter
    next_index, next_data = iterator._next_index, iterator._next_data
    interception = session.interception

    @functools.wraps(next_index)
    def _next_index(self: Any) -> Any:
        index = next_index(self)
        self.__dict__.setdefault("_drawn", []).append(index)
        return index

    @functools.wraps(next_data)
    def _next_data(self: Any) -> Any:
        number = self.__dict__.get("_number")
        if number is None or not interception.is_ours():
            return next_data(self)
        if not self._drawn:
            session.hooks.epoch_ended(number)
            return next_data(self)
        load = functools.partial(in_region, next_data, self)
        return session.hooks.fetch(promise, self._drawn.pop(0), load, must_load=True)

    def in_region(original: Any, self: Any) -> Any:
        with interception.region():  # it draws the next indices, which a replay draws elsewhere
            return original(self)

    iterator._next_index = _next_index
    iterator._next_data = _next_data


def _patch_iterators(session: Seen, promise: LoadingProof) -> None:
    loader_class: Any = DataLoader
    original = loader_class._get_iterator
    interception = session.interception
    numbers = iter(range(1 << 62))

    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        if not interception.is_ours() or not _is_seeded_each_epoch(self):
            return original(self)
        number = next(numbers)
        if session.hooks.skips_epoch(number):
            return SkippedEpoch(self, session, number, promise)
        iterator = original(self)
        iterator._number = number
        return iterator

    loader_class._get_iterator = _get_iterator


def _is_seeded_each_epoch(loader: Any) -> bool:
    is_map = loader._dataset_kind == dataloader._DatasetKind.Map
    in_order = getattr(loader, "in_order", True)
    return loader.num_workers > 0 and is_map and in_order and not loader.persistent_workers
