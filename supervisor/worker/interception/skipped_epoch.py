"""An epoch of a loader with workers that a fast-forward need not load."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import dataloader

from supervisor.worker.interception.instrument import Seen
from supervisor.worker.recording.loading_proof import LoadingProof


class SkippedEpoch(dataloader._BaseDataLoaderIter):
    """Draws seed and indices as the real iterator does, and starts no workers.

    Args:
        loader: a map-style loader with workers that do not persist.
        session: its moments stand in for the batches.
        number: which epoch this is, see `TrainingHooks.skips_epoch`.
        proof: that its loading may be left out.
    """

    def __init__(self, loader: Any, session: Seen, number: int, proof: LoadingProof) -> None:
        super().__init__(loader)
        self._session = session
        self._number = number
        self._proof = proof
        self._loader = loader
        self._drawn: list[Any] = []
        for _ in range(loader.prefetch_factor * loader.num_workers):
            self._draw()

    def _draw(self) -> None:
        try:
            self._drawn.append(next(self._sampler_iter))
        except StopIteration:
            return

    def _next_data(self) -> Any:
        if not self._drawn:
            self._session.hooks.epoch_ended(self._number)
            raise StopIteration
        indices = self._drawn.pop(0)
        with self._session.interception.region():  # the real iterator draws within its fetch, too
            self._draw()
        load = functools.partial(self._load, indices)
        return self._session.hooks.fetch(self._proof, indices, load, must_load=False)

    def _load(self, indices: Any) -> Any:
        """Called only if the replay has turned out not to be the recorded run."""
        loader = self._loader
        fetcher = dataloader._DatasetKind.create_fetcher(
            loader._dataset_kind,
            loader.dataset,
            loader._auto_collation,
            loader.collate_fn,
            loader.drop_last,
        )
        return fetcher.fetch(indices)
