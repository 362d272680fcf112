"""The moments at which the patched data loaders of torch hand over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from supervisor.worker.core.training_hooks import Call
from supervisor.worker.loading.loading_proof import LoadingProof
from supervisor.worker.loading.stream_proof import Stream
from supervisor.worker.loading.worker_proof import Iteration, WorkerNote


class LoadingHooks(ABC):
    """What data loaders do where loading may be left out of a fast-forward
    (`fast_forward.skip_loading`); every method returns what the loader gets."""

    @abstractmethod
    def fetch(self, proof: LoadingProof, indices: Any, call: Call) -> Any:
        """A map-style loader without workers fetches the samples of one batch.

        Args:
            proof: of the data set; not given up so far.
            indices: what the sampler drew for it.
            call: loads it.
        """

    @abstractmethod
    def stream_fetch(self, stream: Stream, call: Call) -> Any:
        """A loader without workers makes a batch from an iterable-style data set.

        Args:
            stream: its iterator; the proof of its data set is not given up so far.
            call: makes it, or raises StopIteration.
        """

    def worker_plan(self, number: int) -> Any:
        """A loader with workers begins an iterator: what is left out of it, None for nothing.

        Args:
            number: of such iterators in this process, from 0.
        """
        return None

    @abstractmethod
    def worker_batch(
        self, iteration: Iteration, worker: int, indices: Any, note: WorkerNote | None, batch: Any
    ) -> Any:
        """Such an iterator hands out a batch, or a `LeftOut` in its place.

        Args:
            worker: which one loaded it.
            indices: what the sampler drew for it.
            note: what the worker says of it; None if it is not watched.
        """

    @abstractmethod
    def epoch_ended(self, iteration: Iteration) -> None:
        """Such an iterator, of workers that do not persist, has handed out all its batches."""

    @abstractmethod
    def batch(self, batch: Any) -> Any:
        """A data loader of any kind hands out a batch."""
