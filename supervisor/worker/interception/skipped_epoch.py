"""An epoch of a loader with workers that a fast-forward leaves out as a whole."""

from __future__ import annotations

from typing import Any

from torch.utils.data import dataloader

from supervisor.worker.interception.instrument import Seen
from supervisor.worker.recording.loading.worker_proof import Iteration, LeftOut


class SkippedEpoch(dataloader._BaseDataLoaderIter):
    """Draws seed and indices as the real iterator does, and starts no workers.

    Args:
        loader: a map-style loader with workers that do not persist.
        session: its moments stand in for the batches.
        iteration: which one this is.
    """

    def __init__(self, loader: Any, session: Seen, iteration: Iteration) -> None:
        super().__init__(loader)
        self._session = session
        self._iteration = iteration
        self._loader = loader
        self._reset(loader, first_iter=True)
        for _ in range(loader.prefetch_factor * loader.num_workers):
            self._draw()

    def _draw(self) -> None:
        try:
            self._iteration.drawn.append(next(self._sampler_iter))
        except StopIteration:
            return

    def _next_data(self) -> Any:
        iteration, hooks = self._iteration, self._session.hooks
        if not iteration.drawn:
            hooks.loading.epoch_ended(iteration)
            raise StopIteration
        indices = iteration.drawn.pop(0)
        self._draw()
        worker = iteration.handed_out % self._num_workers
        batch = hooks.loading.worker_batch(iteration, worker, indices, None, LeftOut(indices))
        if isinstance(batch, LeftOut):  # the replay is not the recorded run
            batch = load_here(self, indices)
        iteration.handed_out += 1
        return batch


def load_here(iterator: Any, indices: Any) -> Any:
    """Loads a batch in this process."""
    fetcher = dataloader._DatasetKind.create_fetcher(
        iterator._dataset_kind,
        iterator._dataset,
        iterator._auto_collation,
        iterator._collate_fn,
        iterator._drop_last,
    )
    return fetcher.fetch(indices)
