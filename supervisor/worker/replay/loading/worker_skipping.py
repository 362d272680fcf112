"""Answers for the batches of loader workers during a fast-forward."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from supervisor.errors import ReplayError
from supervisor.storage.steps.tape import EntryKind
from supervisor.storage.steps.tape_reader import TapeReader
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.recording.loading.worker_proof import (
    Iteration,
    LeftOut,
    WorkerMark,
    WorkerNote,
    pack_iteration,
)
from supervisor.worker.replay.loading.loader_skipping import (
    FetchMark,
    KnownShapes,
    compare_indices,
)
from supervisor.worker.replay.loading.worker_plan import WorkerPlan, plans


class WorkerSkipping:
    """Hands out stand-ins for what workers were not asked for, and compares what they loaded.

    Args:
        target: steps of the checkpoint.
        allowed: numbers of the data sets whose batches may be others.
    """

    def __init__(
        self,
        tape: TapeReader,
        interception: InterceptionState,
        *,
        target: int,
        allowed: Collection[int],
        shapes: KnownShapes,
    ) -> None:
        self._tape = tape
        self._interception = interception
        self._shapes = shapes
        self._allowed = allowed
        self._plans = plans(tape, target, allowed)

    def plan(self, number: int) -> WorkerPlan | None:
        return self._plans.get(number)

    def batch(
        self, iteration: Iteration, worker: int, indices: Any, note: WorkerNote | None, batch: Any
    ) -> Any:
        """Returns the batch, or what stands for it if it was left out.

        Raises:
            ReplayError: this is not what the recorded run handed out here.
        """
        if iteration.proof.is_given_up:
            return batch
        mark = WorkerMark.unpack(self._tape.take(EntryKind.WORKER_BATCH))
        if (mark.iteration, mark.place) != (iteration.number, iteration.handed_out):
            raise ReplayError("another data loader hands out a batch than in the recorded run")
        if mark.is_given_up:
            iteration.proof.is_given_up = True
            return batch
        fetched = FetchMark.unpack(mark.fetch)
        compare_indices(fetched, indices)
        if mark.worker != worker:
            raise ReplayError("another loader worker loads a batch than in the recorded run")
        if mark.proof in self._allowed:
            iteration.proof.is_costly = True  # as the recorded run has found
        with self._interception.region():
            if isinstance(batch, LeftOut):
                if not self._shapes.has(fetched):
                    raise ReplayError("a batch was left out though none of its shape was loaded")
                return self._shapes.stand_in(fetched)
            self._shapes.loaded(fetched, batch)
        if note is not None and note.astray:
            raise ReplayError(note.astray)
        if note is not None and note.drawn != mark.drawn:
            raise ReplayError("a loader worker draws other random numbers than in the recorded run")
        return batch

    def ended(self, iteration: Iteration) -> None:
        """Raises ReplayError if the recorded run's loader did not come to its end here."""
        if iteration.proof.is_given_up:
            return
        if self._tape.take(EntryKind.EPOCH_END) != pack_iteration(iteration.number):
            raise ReplayError("another data loader has come to its end")
