"""All that a process knows of what its data sets may leave out of a fast-forward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from supervisor.by_identity import ByIdentity
from supervisor.worker.core.call_state import CallState, has_compiled
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.loading.loading_proof import LoadingPromise, LoadingProof
from supervisor.worker.loading.stream_proof import StreamProof
from supervisor.worker.loading.worker_proof import Iteration, WorkerProof
from supervisor.worker.loading.workers_data import WorkersData

P = TypeVar("P", bound=LoadingProof | WorkerProof)
_NAMED = 3


class LoadingProofs(Part):
    """The proofs of all data sets of this process.

    Args:
        promised: see `LoadingPromise`; otherwise each data set is watched.

    Attributes:
        is_noted: what data sets load is watched and on the replay log; a resume goes by its replay
            log.
        may_leave_out: this process may leave loading out, and its checkpoints may promise it.
        iterations: the iterators of loaders with workers that are watched.
    """

    name = "loading"

    def __init__(
        self,
        call_state: CallState,
        *,
        promised: bool,
        is_noted: bool = True,
        may_leave_out: bool = True,
    ) -> None:
        self.is_noted = is_noted
        self.may_leave_out = may_leave_out
        self.promise = LoadingPromise(call_state) if promised else None
        self.iterations: weakref.WeakKeyDictionary[Any, Iteration] = weakref.WeakKeyDictionary()
        self._call_state = call_state
        self._given_up = LoadingProof(-1, self, LoadingProofs, call_state)
        self._given_up.is_given_up = True
        # Data set → its proofs, one a collate function.
        self._known: ByIdentity[Any, list[LoadingProof]] = ByIdentity()
        self._of_workers: ByIdentity[Any, list[WorkerProof]] = ByIdentity()
        self._of_streams: ByIdentity[Any, list[StreamProof]] = ByIdentity()
        self._proofs: list[LoadingProof | WorkerProof] = []
        self._workers_data: WorkersData | None = None

    def of(self, fetcher: Any) -> LoadingProof:
        """The proof for what a map-style fetcher loads."""
        if self.promise is not None:
            return self.promise
        call_state = self._call_state
        found = self._known_or_new(
            self._known,
            fetcher,
            lambda n, data, collate: LoadingProof(n, data, collate, call_state),
        )
        return found or self._given_up

    def of_workers(self, loader: Any) -> WorkerProof | None:
        """The proof for what a map-style loader's workers load; None if there can be none."""
        promised = self.promise is not None
        return self._known_or_new(
            self._of_workers,
            loader,
            lambda n, data, collate: WorkerProof(n, data, collate, promised=promised),
        )

    def of_stream(self, fetcher: Any) -> StreamProof | None:
        """The proof for what an iterable-style fetcher makes; None if there can be none."""
        call_state = self._call_state
        return self._known_or_new(
            self._of_streams,
            fetcher,
            lambda n, data, collate: StreamProof(n, data, collate, call_state),
        )

    def _known_or_new(
        self, table: ByIdentity[Any, list[P]], loader: Any, make: Callable[[int, Any, Any], P]
    ) -> P | None:
        data, collate = loader.dataset, loader.collate_fn
        proofs: list[P] = table.get(data, [])
        for known in proofs:
            if known.is_of(data, collate):
                return known
        try:
            proof = make(len(self._proofs), data, collate)
        except TypeError:  # of a plain list there is no weak reference
            return None
        self._proofs.append(proof)
        table[data] = [*proofs, proof]
        return proof

    def save(self, point: SavePoint) -> None:
        point.hold({"told_states": self.dataset_states()})
        point.note({"pure_loading": self.left_out()})

    def before_state(self) -> None:
        self._workers_data = WorkersData()

    def after_state(self, arrived: Arrived) -> list[str]:
        data, self._workers_data = self._workers_data, None
        found = {} if data is None else data.outdated()
        for iterator in found.values():
            if (iteration := self.iterations.get(iterator)) is not None:
                iteration.is_outdated = True
        return [f"a loader's workers still have {path} of the replay" for path in [*found][:_NAMED]]

    def left_out(self) -> list[int]:
        """Numbers of the data sets whose loading a resume from here on may leave out. Called at a
        checkpoint."""
        if not self.may_leave_out or (self.promise is None and has_compiled()):
            return []
        return sorted(proof.number for proof in self._all() if proof.holds())

    def dataset_states(self) -> dict[str, str]:
        """What streams that tell their state told last, by `Stream.key`. For a checkpoint."""
        found: dict[str, str] = {}
        for proof in self._proofs:
            if isinstance(proof, StreamProof) and not proof.is_given_up:
                found |= dict(proof.told)
        return found

    def _all(self) -> Iterator[LoadingProof | WorkerProof]:
        if self.promise is not None:
            yield self.promise
        yield from self._proofs
