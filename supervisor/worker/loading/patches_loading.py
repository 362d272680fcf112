"""The patches by which batches are seen while they are fetched, and left out of a replay.

A worker process inherits the patched fetch by its fork, and sends a note with each batch. In a
fast-forward a worker is asked only for the batches that are needed, and moves its random generators
on first; the others are handed out by the iterator itself, as if they had arrived early. Workers
that do not inherit it (start method spawn) load as ever, and nothing is left out.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import fetch as fetching

from supervisor.errors import pass_on
from supervisor.training_state.draws import Generators, advance, between, look
from supervisor.worker.core.budget import Share
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.part import Sides
from supervisor.worker.core.training_hooks import Seen
from supervisor.worker.loading.loading_hooks import LoadingHooks
from supervisor.worker.loading.loading_proof import LoadingProof
from supervisor.worker.loading.loading_proofs import LoadingProofs
from supervisor.worker.loading.worker_proof import (
    CLOSELY,
    Iteration,
    LeftOut,
    Positioned,
    WorkerBatch,
    WorkerNote,
    WorkerProof,
)

_UNKNOWN = object()


def watch_fetches(session: Seen, loading: Sides[LoadingHooks], proofs: LoadingProofs) -> None:
    """Patches torch for the rest of this process's life. Called once, after `instrument`.

    What loader workers fetch is seen by `patches_workers`.
    """
    fetcher: Any = fetching._MapDatasetFetcher
    original = fetcher.fetch
    call_state = session.call_state

    @functools.wraps(original)
    def fetch(self: Any, indices: Any) -> Any:
        if not call_state.is_ours():
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
    call_state = session.call_state

    @functools.wraps(original)
    def fetch(self: Any, indices: Any) -> Any:
        if self.ended or not call_state.is_ours():
            return original(self, indices)
        stream = self.__dict__.get("_stream", _UNKNOWN)
        if stream is _UNKNOWN:  # a fetcher lives for an epoch
            proof = proofs.of_stream(self)
            stream = self._stream = None if proof is None else proof.start(self)
        if stream is None or stream.proof.is_given_up:
            return original(self, indices)
        return loading.now.stream_fetch(stream, functools.partial(original, self, indices))

    fetcher.fetch = fetch


_BUDGET = Share(0.01)
"""Of a worker's time, for comparing."""


class WorkerWatch:
    """Lives as long as its process; what goes wrong in here ends the watch, not the loading."""

    def __init__(self, proof: WorkerProof, data: Any, collate: Any, call_state: CallState) -> None:
        self._promised = proof.promised
        self._closely = 0 if proof.promised else 1 if proof.was_watched else CLOSELY
        self._proof = LoadingProof(0, data, collate, call_state, in_worker=True)
        self._is_over = False
        self._fetches = 0
        self._compare_at = 0.0
        self._stand: Generators | None = None

    def fetch(self, given: Any, load: Callable[[Any], Any]) -> Any:
        """Returns the batch, with a `WorkerNote` while something is noted."""
        indices, astray = given, ""
        if isinstance(given, Positioned):
            indices, self._stand = given.indices, None
            try:
                advance(given.drawn)
            except ValueError as error:
                astray = str(error)
        if self._is_over and not astray:
            return load(indices)
        self._is_over = True  # in case that loading raises: what it drew is not noted then
        earlier = self._stand or look()  # what is drawn between two counts for the later
        started = time.perf_counter()
        is_close = self._fetches < self._closely
        if is_close:
            batch = self._proof.watch_closely(indices, lambda: load(indices))
        else:
            batch = load(indices)
        seconds = time.perf_counter() - started
        try:
            note = self._note(earlier, 0.0 if is_close else seconds, astray, is_close=is_close)
        except BaseException as error:
            pass_on(error)
            return batch
        self._fetches += 1
        self._is_over = bool(note.fault)
        return WorkerBatch(batch, note)

    def _note(
        self, earlier: Generators, seconds: float, astray: str, *, is_close: bool
    ) -> WorkerNote:
        self._stand = look()
        drawn = between(earlier, self._stand)
        is_verified = self._promised or is_close
        started = time.perf_counter()
        if not is_verified and started >= self._compare_at:
            self._proof.compare()
            is_verified = True
            now = time.perf_counter()
            self._compare_at = now + _BUDGET.apart_s(now - started)
        fault = self._proof.reason
        return WorkerNote(drawn, is_verified and not fault, fault, astray, seconds)


_NEEDED = ("_reset", "_next_index", "_next_data", "_try_put_index", "_process_data")


class _Started:
    """What a worker process finds, because it was forked while this was set."""

    def __init__(self) -> None:
        self.proof: WorkerProof | None = None
        self.watch: WorkerWatch | None = None


def watch_workers(session: Seen, loading: Sides[LoadingHooks], proofs: LoadingProofs) -> None:
    """Patches torch for the rest of this process's life. Called once, after `instrument`."""
    iterator: Any = dataloader._MultiProcessingDataLoaderIter
    if not all(hasattr(iterator, name) for name in _NEEDED):
        return  # another torch: workers load everything
    iterations = proofs.iterations
    started = _Started()
    _patch_fetch_in_workers(session, started)
    _patch_beginning(session, loading, proofs, iterations, started)
    _patch_asking(iterations)
    _patch_handing_out(session, loading, iterations)


def _patch_fetch_in_workers(session: Seen, started: _Started) -> None:
    fetcher: Any = fetching._MapDatasetFetcher
    original = fetcher.fetch
    call_state = session.call_state

    @functools.wraps(original)
    def fetch(self: Any, indices: Any) -> Any:
        proof = started.proof
        if proof is None or call_state.active or not proof.is_of(self.dataset, self.collate_fn):
            return original(self, indices)
        if started.watch is None:
            started.watch = WorkerWatch(proof, self.dataset, self.collate_fn, call_state)
        return started.watch.fetch(indices, functools.partial(original, self))

    fetcher.fetch = fetch


def _patch_beginning(
    session: Seen,
    loading: Sides[LoadingHooks],
    proofs: LoadingProofs,
    iterations: weakref.WeakKeyDictionary[Any, Iteration],
    started: _Started,
) -> None:
    loader_class: Any = DataLoader
    original = loader_class._get_iterator
    call_state = session.call_state
    iterator_class: Any = dataloader._MultiProcessingDataLoaderIter
    reset = iterator_class._reset
    beginning: list[Iteration] = []
    count = 0

    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        nonlocal count
        if not (call_state.is_ours() and proofs.is_noted and _is_ordered(self)):
            return original(self)
        proof = proofs.of_workers(self)
        if proof is None or proof.is_given_up:
            return original(self)
        iteration = Iteration(count, proof, loading.now.worker_plan(count))
        count += 1
        if iteration.plan is not None and iteration.plan.is_whole:
            return SkippedEpoch(self, loading, iteration)
        beginning.append(iteration)
        started.proof = proof
        try:
            return original(self)
        finally:
            started.proof = None
            beginning.clear()

    @functools.wraps(reset)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if first_iter:
            if beginning:
                iterations[self] = beginning.pop()
        else:
            iteration = iterations.get(self)
            if iteration is not None and iteration.drawn:  # what is under way is thrown away
                iteration.proof.reason = "an epoch of persistent workers was not taken to its end"
                iteration.drawn.clear()
        reset(self, loader, first_iter)

    loader_class._get_iterator = _get_iterator
    iterator_class._reset = _reset


def _patch_asking(iterations: weakref.WeakKeyDictionary[Any, Iteration]) -> None:
    iterator: Any = dataloader._MultiProcessingDataLoaderIter
    next_index, try_put_index = iterator._next_index, iterator._try_put_index

    @functools.wraps(next_index)
    def _next_index(self: Any) -> Any:
        indices = next_index(self)
        iteration = iterations.get(self)
        if iteration is not None:
            iteration.drawn.append(indices)
            iteration.sent += 1
        return indices

    @functools.wraps(try_put_index)
    def _try_put_index(self: Any) -> None:
        iteration = iterations.get(self)
        if iteration is None or iteration.plan is None:
            try_put_index(self)
            return
        try:
            indices = self._next_index()
        except StopIteration:
            return
        worker, place = next(self._worker_queue_idx_cycle), iteration.sent - 1
        if iteration.plan.leaves_out(place):  # as if it had arrived before its turn
            self._task_info[self._send_idx] = (worker, LeftOut(indices))
        else:
            drawn = iteration.plan.drawn_before(place, worker)
            given = Positioned(indices, drawn) if drawn else indices
            self._index_queues[worker].put((self._send_idx, given))
            self._task_info[self._send_idx] = (worker,)
            self._tasks_outstanding += 1
        if hasattr(self, "_workers_num_tasks"):
            self._workers_num_tasks[worker] += 1
        self._send_idx += 1

    iterator._next_index = _next_index
    iterator._try_put_index = _try_put_index


def _patch_handing_out(
    session: Seen,
    loading: Sides[LoadingHooks],
    iterations: weakref.WeakKeyDictionary[Any, Iteration],
) -> None:
    iterator: Any = dataloader._MultiProcessingDataLoaderIter
    process_data, next_data = iterator._process_data, iterator._next_data
    call_state = session.call_state

    @functools.wraps(process_data)
    def _process_data(self: Any, data: Any, *worker: int) -> Any:
        note = None
        if isinstance(data, WorkerBatch):
            data, note = data.data, data.note
        iteration = iterations.get(self)
        if iteration is None:
            return process_data(self, data, *worker)
        indices = iteration.drawn.pop(0) if iteration.drawn else None
        batch = process_data(self, data, *worker)
        if call_state.is_ours():
            number = worker[0] if worker else iteration.handed_out % self._num_workers
            batch = loading.now.worker_batch(iteration, number, indices, note, batch)
        if isinstance(batch, LeftOut):  # the replay is not the recorded run
            batch = load_here(self, batch.indices)
        elif iteration.is_to_be_loaded_here(note):
            batch = load_here(self, indices)
        iteration.handed_out += 1
        return batch

    @functools.wraps(next_data)
    def _next_data(self: Any) -> Any:
        try:
            return next_data(self)
        except StopIteration:
            iteration = iterations.get(self)
            if iteration is not None and not self._persistent_workers and call_state.is_ours():
                loading.now.epoch_ended(iteration)
            raise

    iterator._process_data = _process_data
    iterator._next_data = _next_data


def _is_ordered(loader: Any) -> bool:
    """Whether its batches come in the order of their indices, from workers."""
    is_map = loader._dataset_kind == dataloader._DatasetKind.Map
    return loader.num_workers > 0 and is_map and getattr(loader, "in_order", True)


class SkippedEpoch(dataloader._BaseDataLoaderIter):
    """Draws seed and indices as the real iterator does, and starts no workers.

    Args:
        loader: a map-style loader with workers that do not persist.
        loading: what it hands out comes from there.
        iteration: which one this is.
    """

    def __init__(self, loader: Any, loading: Sides[LoadingHooks], iteration: Iteration) -> None:
        super().__init__(loader)
        self._loading = loading
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
        iteration, loading = self._iteration, self._loading
        if not iteration.drawn:
            loading.now.epoch_ended(iteration)
            raise StopIteration
        indices = iteration.drawn.pop(0)
        self._draw()
        worker = iteration.handed_out % self._num_workers
        batch = loading.now.worker_batch(iteration, worker, indices, None, LeftOut(indices))
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
