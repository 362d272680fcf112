"""What data loaders hand to the script, live and in a replay."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from supervisor.storage.steps.replay_log import EntryKind
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.draws import between, look
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.process_signs import Heartbeat
from supervisor.worker.core.replay_comparison import ReplayComparison
from supervisor.worker.core.training_hooks import Call
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.loading.loader_skipping import (
    NEAR_STEPS,
    FetchMark,
    KnownShapes,
    LoaderSkipping,
    RecordedData,
    contents,
    pack_mark,
)
from supervisor.worker.loading.loading_hooks import LoadingHooks
from supervisor.worker.loading.loading_proof import LoadingProof
from supervisor.worker.loading.stream_proof import Stream, StreamMark
from supervisor.worker.loading.stream_skipping import StreamSkipping
from supervisor.worker.loading.worker_proof import Iteration, WorkerMark, WorkerNote, pack_iteration
from supervisor.worker.loading.worker_skipping import WorkerSkipping
from supervisor.worker.reads.recording import Recording


class LoaderHooks(LoadingHooks):
    """The live side of `LoadingHooks`."""

    def __init__(self, context: WorkerContext, recording: Recording, heartbeat: Heartbeat) -> None:
        self._call_state = context.call_state
        self._progress = context.progress
        self._recording = recording
        self._heartbeat = heartbeat
        self._part = context.breakers("batch", records=True)

    def fetch(self, proof: LoadingProof, indices: Any, call: Call) -> Any:
        """Returns the batch that `call` loads; its mark goes on the replay log, with what it
        drew."""
        probe, replay_log = self._progress.probe, self._recording.replay_log
        with self._call_state.region():
            earlier = look()
        forward_calls = probe.forward_calls
        batch = proof.watch(indices, call)
        with self._part:
            if probe.forward_calls != forward_calls:
                proof.reason = "loading runs a model"
            proof.decide()
            mark = drawn = b""
            if not proof.is_given_up:
                with self._call_state.region():
                    mark = pack_mark(indices, batch)
                    drawn = between(earlier, look())
            replay_log.append(EntryKind.BATCH, mark)
            if drawn:
                replay_log.append(EntryKind.DRAWN, drawn)
        return batch

    def stream_fetch(self, stream: Stream, call: Call) -> Any:
        """Returns the batch that `call` makes; its mark goes on the replay log.

        Raises:
            StopIteration: the stream has ended.
        """
        proof, probe, replay_log = stream.proof, self._progress.probe, self._recording.replay_log
        with self._call_state.region():
            earlier = look()
        forward_calls = probe.forward_calls
        try:
            batch = proof.make(stream, call)
        except StopIteration:
            with self._part:
                replay_log.append(EntryKind.STREAM_END, stream.packed())
            raise
        with self._part:
            if probe.forward_calls != forward_calls:
                proof.reason = "loading runs a model"
            follows = proof.settle(stream)
            proof.decide()
            drawn, fetched, state = b"", b"", ""
            if not proof.is_given_up:
                with self._call_state.region():
                    fetched = pack_mark(contents(batch), batch)
                    drawn = between(earlier, look())
                    form = FetchMark.unpack(fetched).form
                    state = proof.state_before(stream, form, follows=follows)
            mark = StreamMark(
                proof=proof.number,
                stream=stream.number,
                fetches=stream.fetches,
                follows=follows,
                is_given_up=proof.is_given_up,
                drawn=drawn,
                fetch=fetched,
                state=state,
            )
            replay_log.append(EntryKind.STREAM_BATCH, mark.pack())
        return batch

    def worker_batch(
        self, iteration: Iteration, worker: int, indices: Any, note: WorkerNote | None, batch: Any
    ) -> Any:
        """Returns the batch; its mark goes on the replay log, with the worker's note."""
        proof = iteration.proof
        if not proof.is_given_up:
            with self._part:
                proof.take(note)
                drawn, fetched, verified = b"", b"", False
                if note is not None and not proof.is_given_up:
                    drawn, verified = note.drawn, note.is_verified
                    with self._call_state.region():
                        fetched = pack_mark(indices, batch)
                mark = WorkerMark(
                    iteration=iteration.number,
                    place=iteration.handed_out,
                    worker=worker,
                    is_verified=verified,
                    is_given_up=proof.is_given_up,
                    proof=proof.number,
                    drawn=drawn,
                    fetch=fetched,
                )
                self._recording.replay_log.append(EntryKind.WORKER_BATCH, mark.pack())
        return batch

    def epoch_ended(self, iteration: Iteration) -> None:
        """A loader with workers has handed out all batches of its epoch."""
        if not iteration.proof.is_given_up:
            self._recording.replay_log.append(EntryKind.EPOCH_END, pack_iteration(iteration.number))

    def batch(self, batch: Any) -> Any:
        self._call_state.depth += 1
        try:
            if self._part.is_on:
                self._progress.probe.saw_batch(batch)
                self._progress.last_batch = batch
                self._heartbeat.beat(self._progress.steps_done, loads=True)
        except BaseException as error:
            self._part.caught(error)
        finally:
            self._call_state.depth -= 1
        return batch


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
        replay_log: ReplayLogReader,
        call_state: CallState,
        comparison: ReplayComparison,
        *,
        allowed: Collection[int],
        hand_out: Callable[[Any], None],
        data: RecordedData,
        saw_batch: Callable[[Any], None],
    ) -> None:
        self._saw_batch = saw_batch
        self._call_state = call_state
        self._comparison = comparison
        shapes = KnownShapes(hand_out)
        self._skipping = LoaderSkipping(
            replay_log, call_state, allowed=allowed, shapes=shapes, data=data
        )
        self._of_workers = WorkerSkipping(
            replay_log, call_state, target=comparison.target, allowed=allowed, shapes=shapes
        )
        self._streams = StreamSkipping(
            replay_log, call_state, allowed=allowed, shapes=shapes, told=data.told
        )

    def fetch(self, proof: LoadingProof, indices: Any, call: Call) -> Any:
        batch = None
        if self._comparison.holds:
            with self._comparison:
                if not self._is_near():
                    batch = self._skipping.stand_in(proof, indices)
                if batch is None:
                    with self._call_state.region():
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
