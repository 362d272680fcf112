"""Whether samples of an `IterableDataset` can be left out of a fast-forward.

The first fetches are watched as those of map-style data sets are. What moves from sample to sample
must be one of Python's own iterators (`stream_place`). The first batch of each stream, each one at
which more than that iterator has moved, and the end of a stream are always really made.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import time
import types
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from supervisor.worker.recording.executed_code import ExecutedCode
from supervisor.worker.recording.fingerprint import CannotTell, fingerprint
from supervisor.worker.recording.loading_proof import PROFILED, TIMED, LoadingProof
from supervisor.worker.recording.named_globals import is_users
from supervisor.worker.recording.stream_place import StreamPlace, place_of

_UNSETTLED = 16
"""So many batches in a row before which more had moved than one iterator: it is no use."""
_SHARE, _ALLOWANCE_S = 0.02, 0.2
"""Of the time of loading, and beyond it, that comparing may take."""
_HEAD = struct.Struct("<HIQqBH")
_FOLLOWS, _GIVEN_UP = 1, 2
_PLACE = struct.Struct("<HIQ")


@dataclass(frozen=True, slots=True)
class StreamMark:
    """What the tape keeps of a batch of a stream.

    Attributes:
        proof: number of the proof.
        stream: number among the streams of that data set.
        fetches: batches that this stream has made, this one included.
        left: see `StreamPlace`.
        follows: since the batch before only the innermost iterator has moved.
        is_given_up: nothing is noted of the data set from here on.
        drawn: see `training_state.draws`.
        fetch: the `FetchMark`, packed.
    """

    proof: int
    stream: int
    fetches: int
    left: int = 0
    follows: bool = False
    is_given_up: bool = False
    drawn: bytes = b""
    fetch: bytes = b""

    def pack(self) -> bytes:
        flags = _FOLLOWS * self.follows + _GIVEN_UP * self.is_given_up
        head = _HEAD.pack(self.proof, self.stream, self.fetches, self.left, flags, len(self.drawn))
        return head + self.drawn + self.fetch

    @classmethod
    def unpack(cls, data: bytes) -> StreamMark:
        proof, stream, fetches, left, flags, size = _HEAD.unpack_from(data)
        start = _HEAD.size
        drawn, fetch = data[start : start + size], data[start + size :]
        follows, given_up = bool(flags & _FOLLOWS), bool(flags & _GIVEN_UP)
        return cls(proof, stream, fetches, left, follows, given_up, drawn, fetch)


class Stream:
    """One iterator over an iterable-style data set; it lives as long as its fetcher.

    Attributes:
        number: among the streams of its data set.
        fetches: batches that it has made, or that a replay has left out.
    """

    def __init__(self, proof: StreamProof, fetcher: Any, number: int) -> None:
        self.proof = proof
        self.number = number
        self.fetches = 0
        self._fetcher = weakref.ref(fetcher)
        self._last: StreamPlace | None = None
        self._print = 0
        self._coming: list[int] = []

    @property
    def fetcher(self) -> Any:
        return self._fetcher()

    def place(self) -> StreamPlace:
        """Where it stands now.

        Raises:
            CannotTell: that cannot be seen.
        """
        return place_of(self.fetcher.dataset_iter)

    def packed(self) -> bytes:
        """Which stream and batch this is, as the tape keeps it beside a state or an end."""
        return _PLACE.pack(self.proof.number, self.number, self.fetches)

    def settle(self, watched: Collection[types.CodeType]) -> tuple[int, bool]:
        """Called behind each batch: returns where it stands, and whether it only went on.

        Args:
            watched: what of the user's code was run while it was watched.

        Raises:
            CannotTell: that cannot be seen, or what it keeps has changed.
        """
        if self.fetcher.ended:  # within this batch, which is smaller than the others
            self.compare()
            self._last = None
            return 0, False
        place, earlier = self.place(), self._last
        follows = earlier is not None and place.follows(earlier)
        if not follows:
            self.compare()
            if any(is_users(code.co_filename) and code not in watched for code in place.codes):
                raise CannotTell("its generator goes on in code that was not watched")
            self._coming = place.coming()
            self._print = fingerprint([*place.kept, *place.over], self._coming)
        self._last = place
        return place.left[-1], follows

    def compare(self) -> None:
        """Raises CannotTell if what the stream keeps has changed since it last went another way."""
        last = self._last
        if last is None:
            return
        if fingerprint([*last.kept, *last.over], self._coming) != self._print:
            raise CannotTell("making samples changes something that stays")


class StreamProof(LoadingProof):
    """One data set of iterable-style loaders without workers; see the module's docstring."""

    def __init__(self, number: int, data: Any, collate: Any, interception: Any) -> None:
        super().__init__(number, data, collate, interception)
        self._streams = 0
        self._open: list[Stream] = []
        self._unsettled = 0
        self._watched: set[types.CodeType] = set()
        self._loading_s = self._comparing_s = 0.0

    def begin(self, fetcher: Any) -> Stream:
        """A new iterator over the data set."""
        self._compare_open()
        self._streams += 1
        stream = Stream(self, fetcher, self._streams - 1)
        self._open.append(stream)
        return stream

    def make(self, stream: Stream, load: Callable[[], Any]) -> Any:
        """Returns what `load` does; called for every batch that is really made."""
        stream.fetches += 1
        if self.reason:
            return load()
        number, is_first = self._fetches, stream.fetches == 1
        self._fetches += 1
        if is_first and self._fingerprints:
            self._timed(self.compare)
        executed, started = ExecutedCode(), time.perf_counter()
        batch = executed.run(load) if number < PROFILED else load()
        seconds = time.perf_counter() - started
        self._loading_s += seconds
        if number < PROFILED:
            self.reason = self.reason or executed.fault
            if not is_first and not self.reason:
                self.compare()
            self._reached += executed.reached()
            self._watched |= executed.has_run()
        elif number < PROFILED + TIMED:
            self._times.append(seconds)
        if not self.reason and (is_first or number < PROFILED):
            self._timed(functools.partial(self._look_anew, stream))
        return batch

    def settle(self, stream: Stream) -> tuple[int, bool]:
        """Called behind each batch that was made: where the stream stands, and whether it only
        went on. Sets `reason` where that cannot be told."""
        left, follows = 0, False
        if not self.reason:
            started = time.perf_counter()
            try:
                with self._interception.region():
                    left, follows = stream.settle(self._watched)
            except CannotTell as why:
                self.reason = str(why)
            except Exception as error:  # the user's own __getattr__
                self.reason = f"{type(error).__name__} when it was looked at"
            self._unsettled = 0 if follows else self._unsettled + 1
            if self._unsettled > _UNSETTLED:
                self.reason = self.reason or "its generator keeps something from batch to batch"
            self._spent(0.0 if follows else time.perf_counter() - started)
        return left, follows

    def ended(self, stream: Stream) -> None:
        """A stream has come to its end."""
        self._compare_open()
        self._open = [one for one in self._open if one is not stream]

    def holds(self) -> bool:
        if super().holds():
            self._compare_open()
        return not (self.is_given_up or self.reason) and self._fetches >= PROFILED + TIMED

    def _compare_open(self) -> None:
        """Compares streams that have not ended, and forgets those that the script has left."""
        for stream in self._open if not self.reason else ():
            try:
                with self._interception.region():
                    stream.compare()
            except Exception as why:
                self.reason = self.reason or str(why)
        self._open = [stream for stream in self._open if stream.fetcher is not None]

    def _look_anew(self, stream: Stream) -> None:
        """Looks at what the next batch will be made of, among the rest."""
        with contextlib.suppress(CannotTell), self._interception.region():
            self._indices = [] if stream.fetcher.ended else stream.place().coming()
        self._fingerprints = self._take_fingerprints()

    def _timed(self, call: Callable[[], None]) -> None:
        started = time.perf_counter()
        call()
        self._spent(time.perf_counter() - started)

    def _spent(self, seconds: float) -> None:
        self._comparing_s += seconds
        if self._comparing_s > _ALLOWANCE_S + _SHARE * self._loading_s:
            self.reason = self.reason or "comparing it would take too long"
