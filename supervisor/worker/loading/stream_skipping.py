"""Answers for batches of iterable-style data sets during a fast-forward."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import EntryKind
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.draws import advance, between, look
from supervisor.worker.core.call_state import CallState
from supervisor.worker.loading.loader_skipping import (
    FetchMark,
    KnownShapes,
    checksum,
    contents,
)
from supervisor.worker.loading.stream_proof import Stream, StreamMark, go_on_from

_MADE = (EntryKind.STREAM_BATCH, EntryKind.STREAM_END)


class StreamSkipping:
    """Hands out stand-ins for batches, and moves a stream on before it makes the next real one.

    Args:
        allowed: numbers of the data sets whose batches may be others.
        told: what streams told of their state, see `LoadingProofs.dataset_states`.
    """

    def __init__(
        self,
        replay_log: ReplayLogReader,
        call_state: CallState,
        *,
        allowed: Collection[int],
        shapes: KnownShapes,
        told: Mapping[str, str],
    ) -> None:
        self._replay_log = replay_log
        self._call_state = call_state
        self._allowed = allowed
        self._shapes = shapes
        self._told = told
        self._behind: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._are_recorded: bool | None = None

    def load_all(self) -> None:
        """From here on every batch is made."""
        self._allowed = ()

    def catch_up(self) -> None:
        """Called at the target: the script may go on with an old stream at any time.

        Raises:
            ReplayError: one stands behind batches that were left out.
        """
        if any(stream.fetcher is not None for stream in self._behind):
            raise ReplayError("a stream that tells its state waits for its next batch")

    def batch(self, stream: Stream, call: Callable[[], Any], *, is_near: bool) -> Any:
        """Returns the batch, or what stands for it.

        Raises:
            ReplayError: this is not what the recorded run did here.
            StopIteration: the stream has ended, as it did then.
        """
        kind, data = next(self._replay_log.ahead(*_MADE), (0, b""))
        if self._are_recorded is None:
            self._are_recorded = kind != 0
        if not self._are_recorded:  # by a version that did not watch them
            stream.proof.is_given_up = True
            return call()
        if not self._allowed:
            return self._only_make(stream, kind, data, call)
        if kind == EntryKind.STREAM_END:
            return self._end(stream, call)
        if kind == 0:
            raise ReplayError("a data set makes more samples than in the recorded run")
        mark = StreamMark.unpack(data)
        here = stream.proof.number, stream.number, stream.fetches + 1
        if (mark.proof, mark.stream, mark.fetches) != here:
            raise ReplayError("another data set makes a batch than in the recorded run")
        if mark.is_given_up:
            stream.proof.is_given_up = True
        fetched = FetchMark.unpack(mark.fetch) if mark.fetch else None
        may = not is_near and mark.proof in self._allowed and stream.proof.tells_state
        may = may and fetched is not None and self._shapes.has(fetched)
        if fetched is not None and may and mark.follows:
            return self._leave_out(stream, mark, fetched)
        return self._make(stream, call, mark, fetched)

    def _only_make(self, stream: Stream, kind: int, data: bytes, call: Callable[[], Any]) -> Any:
        """Nothing is left out. Which data set makes it is not asked: a script that finds its
        prepared data goes over fewer."""
        if kind == 0 or (kind == EntryKind.STREAM_BATCH and StreamMark.unpack(data).is_given_up):
            stream.proof.is_given_up = True
        try:
            batch = stream.proof.make(stream, call)
        except StopIteration:
            self._take(EntryKind.STREAM_END)
            raise
        stream.proof.settle(stream)
        if kind:
            self._take(EntryKind.STREAM_BATCH)
        return batch

    def _take(self, kind: EntryKind) -> None:
        found = next(self._replay_log.ahead(*_MADE, EntryKind.TRAINING), (0, b""))[0]
        if found == kind or not self._replay_log.is_before_training:
            self._replay_log.take(kind)

    def _leave_out(self, stream: Stream, mark: StreamMark, fetched: FetchMark) -> Any:
        self._pass_reads()
        self._replay_log.take(EntryKind.STREAM_BATCH)
        stream.fetches += 1
        self._behind.add(stream)
        with self._call_state.region():
            batch = self._shapes.stand_in(fetched)
            try:
                advance(mark.drawn)
            except ValueError as error:
                raise ReplayError(str(error)) from error
        return batch

    def _pass_reads(self) -> None:
        """What was read while the next batch was made."""
        while self._replay_log.peek() not in (EntryKind.STREAM_BATCH, EntryKind.STEP, 0):
            self._replay_log.take(self._replay_log.peek())

    def _make(
        self,
        stream: Stream,
        call: Callable[[], Any],
        mark: StreamMark,
        fetched: FetchMark | None,
    ) -> Any:
        with self._call_state.region():
            earlier = look()
        begins_anew = stream in self._behind
        made = self._move_on(stream, mark.state)
        # What it reads from tensors as it begins was read at another place of the recorded run.
        unseen = self._call_state.region() if begins_anew else contextlib.nullcontext()
        try:
            with unseen:
                batch = stream.proof.make(stream, call)
        except StopIteration:
            raise ReplayError("a data set ends earlier than in the recorded run") from None
        made()
        if begins_anew:
            self._pass_reads()
        stream.proof.settle(stream)
        recorded = self._told.get(stream.key())
        if recorded is not None and dict(stream.proof.told).get(stream.key()) != recorded:
            raise ReplayError("a stream tells another state than in the recorded run")
        self._take(EntryKind.STREAM_BATCH)
        with self._call_state.region():
            if fetched is not None:
                if mark.proof in self._allowed:
                    self._shapes.loaded(fetched, batch)
                if fetched.indices != checksum(contents(batch)):
                    raise ReplayError("a data set makes another batch than in the recorded run")
                if between(earlier, look()) != mark.drawn:
                    raise ReplayError("loading draws other random numbers than in the recorded run")
        return batch

    def _end(self, stream: Stream, call: Callable[[], Any]) -> Any:
        if stream in self._behind:
            self._behind.remove(stream)
            stream.fetches += 1  # the one at which it ended
            raise self._ended(stream)
        try:
            stream.proof.make(stream, call)
        except StopIteration:
            raise self._ended(stream) from None
        raise ReplayError("a data set makes more samples than in the recorded run")

    def _ended(self, stream: Stream) -> Exception:
        """Returns what is to be raised where a stream has come to its end."""
        if self._replay_log.take(EntryKind.STREAM_END) != stream.packed():
            return ReplayError("another data set has come to its end")
        return StopIteration()

    def _move_on(self, stream: Stream, told: str) -> Callable[[], None]:
        """Brings a stream behind the batches that it has left out.

        Args:
            told: what it told there, if the replay log knows it.

        Returns:
            To be called when it has made its next batch.
        """
        if stream not in self._behind:
            return _nothing
        self._behind.remove(stream)
        state = told or self._told.get(stream.key())
        if not state:
            raise ReplayError("where a stream of samples stood was not kept")
        with self._call_state.region():
            try:
                return go_on_from(stream.fetcher, state)
            except Exception as error:  # a library's, of another version
                raise ReplayError(f"a stream does not take its state: {error}") from error


def _nothing() -> None:
    """There is nothing to be done behind a batch."""
