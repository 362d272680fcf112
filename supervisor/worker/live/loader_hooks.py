"""What data loaders hand to the script."""

from __future__ import annotations

from typing import Any

from supervisor.storage.steps.tape import EntryKind
from supervisor.training_state.draws import between, look
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.progress import Progress
from supervisor.worker.interception.loading_hooks import LoadingHooks
from supervisor.worker.interception.training_hooks import Call
from supervisor.worker.process.heartbeat import Heartbeat
from supervisor.worker.recording.loading.loading_proof import LoadingProof
from supervisor.worker.recording.loading.stream_proof import Stream, StreamMark
from supervisor.worker.recording.loading.worker_proof import (
    Iteration,
    WorkerMark,
    WorkerNote,
    pack_iteration,
)
from supervisor.worker.recording.recording import Recording
from supervisor.worker.replay.loading.loader_skipping import FetchMark, contents, pack_mark


class LoaderHooks(LoadingHooks):
    """The live side of `LoadingHooks`."""

    def __init__(
        self,
        interception: InterceptionState,
        progress: Progress,
        recording: Recording,
        heartbeat: Heartbeat,
        barrier: ErrorBarrier,
    ) -> None:
        self._interception = interception
        self._progress = progress
        self._recording = recording
        self._heartbeat = heartbeat
        self._part = barrier("batch", records=True)

    def fetch(self, proof: LoadingProof, indices: Any, call: Call) -> Any:
        """Returns the batch that `call` loads; its mark goes on the tape, with what it drew."""
        probe, tape = self._progress.probe, self._recording.tape
        with self._interception.region():
            earlier = look()
        forward_calls = probe.forward_calls
        batch = proof.watch(indices, call)
        with self._part:
            if probe.forward_calls != forward_calls:
                proof.reason = "loading runs a model"
            proof.decide()
            mark = drawn = b""
            if not proof.is_given_up:
                with self._interception.region():
                    mark = pack_mark(indices, batch)
                    drawn = between(earlier, look())
            tape.append(EntryKind.BATCH, mark)
            if drawn:
                tape.append(EntryKind.DRAWN, drawn)
        return batch

    def stream_fetch(self, stream: Stream, call: Call) -> Any:
        """Returns the batch that `call` makes; its mark goes on the tape.

        Raises:
            StopIteration: the stream has ended.
        """
        proof, probe, tape = stream.proof, self._progress.probe, self._recording.tape
        with self._interception.region():
            earlier = look()
        forward_calls = probe.forward_calls
        try:
            batch = proof.make(stream, call)
        except StopIteration:
            with self._part:
                tape.append(EntryKind.STREAM_END, stream.packed())
            raise
        with self._part:
            if probe.forward_calls != forward_calls:
                proof.reason = "loading runs a model"
            follows = proof.settle(stream)
            proof.decide()
            drawn, fetched, state = b"", b"", ""
            if not proof.is_given_up:
                with self._interception.region():
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
            tape.append(EntryKind.STREAM_BATCH, mark.pack())
        return batch

    def worker_batch(
        self, iteration: Iteration, worker: int, indices: Any, note: WorkerNote | None, batch: Any
    ) -> Any:
        """Returns the batch; its mark goes on the tape, with the worker's note."""
        proof = iteration.proof
        if not proof.is_given_up:
            with self._part:
                proof.take(note)
                drawn, fetched, verified = b"", b"", False
                if note is not None and not proof.is_given_up:
                    drawn, verified = note.drawn, note.is_verified
                    with self._interception.region():
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
                self._recording.tape.append(EntryKind.WORKER_BATCH, mark.pack())
        return batch

    def epoch_ended(self, iteration: Iteration) -> None:
        """A loader with workers has handed out all batches of its epoch."""
        if not iteration.proof.is_given_up:
            self._recording.tape.append(EntryKind.EPOCH_END, pack_iteration(iteration.number))

    def batch(self, batch: Any) -> Any:
        self._interception.depth += 1
        try:
            if self._part.is_on:
                self._progress.probe.saw_batch(batch)
                self._progress.last_batch = batch
                self._heartbeat.beat(self._progress.steps_done, loads=True)
        except BaseException as error:
            self._part.caught(error)
        finally:
            self._interception.depth -= 1
        return batch
