"""The patch by which batches are seen while they are fetched: `fast_forward.skip_loading`."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data._utils import fetch as fetching

from supervisor.worker.core.sides import Sides
from supervisor.worker.interception.loading_hooks import LoadingHooks
from supervisor.worker.interception.training_hooks import Seen
from supervisor.worker.recording.loading.loading_proofs import LoadingProofs

_UNKNOWN = object()


def watch_fetches(session: Seen, loading: Sides[LoadingHooks], proofs: LoadingProofs) -> None:
    """Patches torch for the rest of this process's life. Called once, after `instrument`.

    What loader workers fetch is seen by `patches_workers`.
    """
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
        return loading.now.fetch(proof, indices, load)

    fetcher.fetch = fetch
    _watch_streams(session, loading, proofs)


def _watch_streams(session: Seen, loading: Sides[LoadingHooks], proofs: LoadingProofs) -> None:
    """The same for iterable-style data sets."""
    fetcher: Any = fetching._IterableDatasetFetcher
    original = fetcher.fetch
    interception = session.interception

    @functools.wraps(original)
    def fetch(self: Any, indices: Any) -> Any:
        if self.ended or not interception.is_ours():
            return original(self, indices)
        stream = self.__dict__.get("_stream", _UNKNOWN)
        if stream is _UNKNOWN:  # a fetcher lives for an epoch
            proof = proofs.of_stream(self)
            stream = self._stream = None if proof is None else proof.begin(self)
        if stream is None or stream.proof.is_given_up:
            return original(self, indices)
        return loading.now.stream_fetch(stream, functools.partial(original, self, indices))

    fetcher.fetch = fetch
