"""Answers for batches of iterable-style data sets during a fast-forward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

from supervisor.errors import ReplayError
from supervisor.storage.steps.tape import EntryKind
from supervisor.storage.steps.tape_reader import TapeReader
from supervisor.training_state.draws import advance, between, look
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.recording.fingerprint import CannotTell
from supervisor.worker.recording.stream_proof import (
    Stream,
    StreamMark,
    go_to_state,
    unpack_place,
)
from supervisor.worker.replay.loading.loader_skipping import (
    NEAR_STEPS,
    FetchMark,
    KnownShapes,
    checksum,
    contents,
)

_MADE = (EntryKind.STREAM_BATCH, EntryKind.STREAM_END)


class StreamSkipping:
    """Hands out stand-ins for batches, and moves a stream on before it makes the next real one.

    Attributes:
        by_state: streams that went on from a state of a library's data set.

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
        self.by_state = 0
        self._tape = tape
        self._interception = interception
        self._target = target
        self._allowed = allowed
        self._shapes = shapes
        self._goals: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()
        self._behind: weakref.WeakKeyDictionary[Stream, int] = weakref.WeakKeyDictionary()
        self._states: weakref.WeakKeyDictionary[Stream, bytes] = weakref.WeakKeyDictionary()
        self._are_recorded: bool | None = None

    def load_all(self) -> None:
        """From here on every batch is made."""
        self._allowed = ()

    def batch(
        self, stream: Stream, call: Callable[[], Any], *, steps_done: int, is_near: bool
    ) -> Any:
        """Returns the batch, or what stands for it.

        Raises:
            ReplayError: this is not what the recorded run did here.
            StopIteration: the stream has ended, as it did then.
        """
        kind, data = next(self._tape.ahead(*_MADE), (0, b""))
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
        may = not is_near and mark.proof in self._allowed
        may = may and fetched is not None and self._shapes.has(fetched)
        if fetched is not None and may and self._can_go_past(stream, mark, steps_done):
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
            stream.proof.ended(stream)
            raise
        stream.proof.settle(stream)
        if kind:
            self._take(EntryKind.STREAM_BATCH)
        return batch

    def _take(self, kind: EntryKind) -> None:
        found = next(self._tape.ahead(*_MADE, EntryKind.TRAINING), (0, b""))[0]
        if found == kind or not self._tape.is_before_training:
            self._tape.take(kind)
        if self._tape.peek() == EntryKind.STREAM_STATE:
            self._tape.take(EntryKind.STREAM_STATE)

    def _can_go_past(self, stream: Stream, mark: StreamMark, steps_done: int) -> bool:
        if not stream.proof.has_state:
            return mark.follows
        goal = self._goals.get(stream)
        if goal is None:
            goal = self._goals[stream] = self._last_state(stream, steps_done)
        return mark.fetches <= goal

    def _last_state(self, stream: Stream, step: int) -> int:
        """Batches before the last state of a stream from which on it is to be loaded again."""
        own, last = (stream.proof.number, stream.number), 0
        for kind, data in self._tape.ahead(
            EntryKind.STEP, EntryKind.STREAM_STATE, EntryKind.STREAM_BATCH
        ):
            if kind == EntryKind.STEP:
                step += 1
                if self._target - step <= NEAR_STEPS:
                    break
            elif kind == EntryKind.STREAM_STATE:
                proof, number, fetches = unpack_place(data)[0]
                last = fetches if (proof, number) == own else last
            else:
                mark = StreamMark.unpack(data)
                if mark.proof == own[0] and mark.stream != own[1]:
                    break
                if (mark.proof, mark.stream) == own and not (
                    mark.fetch and self._shapes.has(FetchMark.unpack(mark.fetch))
                ):
                    break
        return last

    def _leave_out(self, stream: Stream, mark: StreamMark, fetched: FetchMark) -> Any:
        self._pass_over_reads()
        self._tape.take(EntryKind.STREAM_BATCH)
        stream.fetches += 1
        self._behind[stream] = mark.left
        if self._tape.peek() == EntryKind.STREAM_STATE:
            self._states[stream] = unpack_place(self._tape.take(EntryKind.STREAM_STATE))[1]
        with self._interception.region():
            batch = self._shapes.stand_in(fetched)
            try:
                advance(mark.drawn)
            except ValueError as error:
                raise ReplayError(str(error)) from error
        return batch

    def _make(
        self,
        stream: Stream,
        call: Callable[[], Any],
        mark: StreamMark,
        fetched: FetchMark | None,
    ) -> Any:
        with self._interception.region():
            earlier = look()
        forget = self._catch_up(stream)
        try:
            if forget is None:
                batch = stream.proof.make(stream, call)
            else:  # to come to its state it may read what was read before
                with self._interception.region():
                    batch = stream.proof.make(stream, call)
                    forget()
                self._pass_over_reads()
        except StopIteration:
            raise ReplayError("a data set ends earlier than in the recorded run") from None
        stream.proof.settle(stream)
        self._take(EntryKind.STREAM_BATCH)
        with self._interception.region():
            if fetched is not None:
                if mark.proof in self._allowed:
                    self._shapes.loaded(fetched, batch)
                if fetched.indices != checksum(contents(batch)):
                    raise ReplayError("a data set makes another batch than in the recorded run")
                if between(earlier, look()) != mark.drawn:
                    raise ReplayError("loading draws other random numbers than in the recorded run")
        return batch

    def _end(self, stream: Stream, call: Callable[[], Any]) -> Any:
        forget = self._catch_up(stream)
        try:
            stream.proof.make(stream, call)
        except StopIteration:
            if forget is not None:
                forget()
            if self._tape.take(EntryKind.STREAM_END) != stream.packed():
                raise ReplayError("another data set has come to its end") from None
            stream.proof.ended(stream)
            raise
        raise ReplayError("a data set makes more samples than in the recorded run")

    def _pass_over_reads(self) -> None:
        """Passes over what the recorded run read while it made the batch that comes next."""
        while self._tape.peek() not in (EntryKind.STREAM_BATCH, EntryKind.STEP, 0):
            self._tape.take(self._tape.peek())

    def _catch_up(self, stream: Stream) -> Callable[[], None] | None:
        """Brings a stream behind the batches that it has left out; returns what is to be called
        behind the next one, if it goes on from its state."""
        left = self._behind.pop(stream, None)
        if left is None:
            return None
        with self._interception.region():
            try:
                if stream.proof.has_state:
                    self.by_state += 1
                    return go_to_state(stream.fetcher, self._states.pop(stream))
                stream.place().move(left)
            except (CannotTell, ValueError, KeyError) as error:
                raise ReplayError(f"a stream of samples cannot be moved on: {error}") from error
        return None
