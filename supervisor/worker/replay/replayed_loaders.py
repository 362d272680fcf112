"""What data loaders hand to the script in a replay."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from supervisor.storage.steps.tape_reader import TapeReader
from supervisor.training_state.draws import look
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.interception.loading_hooks import LoadingHooks
from supervisor.worker.interception.training_hooks import Call
from supervisor.worker.recording.loading.loading_proof import LoadingProof
from supervisor.worker.recording.loading.stream_proof import Stream
from supervisor.worker.recording.loading.worker_proof import Iteration, WorkerNote
from supervisor.worker.replay.loading.loader_skipping import NEAR_STEPS, KnownShapes, LoaderSkipping
from supervisor.worker.replay.loading.recorded_data import RecordedData
from supervisor.worker.replay.loading.stream_skipping import StreamSkipping
from supervisor.worker.replay.loading.worker_skipping import WorkerSkipping
from supervisor.worker.replay.replay_comparison import ReplayComparison


class ReplayedLoaders(LoadingHooks):
    """The replay's side of `LoadingHooks`.

    Args:
        comparison: a batch that is another one disproves the replay.
        allowed: numbers of the data sets whose batches may be others, see `LoaderSkipping`.
        hand_out: told of each such batch.
        data: what the checkpoint holds of the script's data.
        saw_batch: told of each batch that the script gets.
    """

    def __init__(
        self,
        tape: TapeReader,
        interception: InterceptionState,
        comparison: ReplayComparison,
        *,
        allowed: Collection[int],
        hand_out: Callable[[Any], None],
        data: RecordedData,
        saw_batch: Callable[[Any], None],
    ) -> None:
        self._saw_batch = saw_batch
        self._interception = interception
        self._comparison = comparison
        shapes = KnownShapes(hand_out)
        self._skipping = LoaderSkipping(
            tape, interception, allowed=allowed, shapes=shapes, data=data
        )
        self._of_workers = WorkerSkipping(
            tape, interception, target=comparison.target, allowed=allowed, shapes=shapes
        )
        self._streams = StreamSkipping(
            tape, interception, allowed=allowed, shapes=shapes, told=data.told
        )

    def fetch(self, proof: LoadingProof, indices: Any, call: Call) -> Any:
        batch = None
        if self._comparison.holds:
            with self._comparison:
                if not self._is_near():
                    batch = self._skipping.stand_in(proof, indices)
                if batch is None:
                    with self._interception.region():
                        earlier = look()
                    batch = self._skipping.load(proof, indices, call, earlier)
                    self._skipping.loaded(proof, indices, batch, earlier)
        return call() if batch is None else batch

    def stream_fetch(self, stream: Stream, call: Call) -> Any:
        made: list[Any] = []

        def make() -> Any:
            made.append(call())
            return made[-1]

        if self._comparison.holds:
            with self._comparison:
                return self._streams.batch(stream, make, is_near=self._is_near())
        return made[-1] if made else call()

    def worker_plan(self, number: int) -> Any:
        return self._of_workers.plan(number) if self._comparison.holds else None

    def worker_batch(
        self, iteration: Iteration, worker: int, indices: Any, note: WorkerNote | None, batch: Any
    ) -> Any:
        if self._comparison.holds:
            with self._comparison:
                return self._of_workers.batch(iteration, worker, indices, note, batch)
        return batch

    def epoch_ended(self, iteration: Iteration) -> None:
        if self._comparison.holds:
            with self._comparison:
                self._of_workers.ended(iteration)

    def batch(self, batch: Any) -> Any:
        self._saw_batch(batch)
        return batch

    def load_all(self) -> None:
        """No batch is left out: data sets may have other numbers than in the recorded run."""
        self._skipping.load_all()
        self._streams.load_all()

    def catch_up(self) -> None:
        """Called at the target: what still stands behind batches that were left out moves on."""
        if self._comparison.holds:
            with self._comparison:
                self._streams.catch_up()

    def _is_near(self) -> bool:
        """Whether batches are loaded in any case: before the first step they often become figures
        that nobody puts back, such as a mean; near the target they may still be in use there."""
        done = self._comparison.steps_done
        return done == 0 or self._comparison.target - done <= NEAR_STEPS
