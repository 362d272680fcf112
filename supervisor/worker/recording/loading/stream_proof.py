"""Whether samples of an `IterableDataset` can be left out of a fast-forward.

The first fetches are watched as those of map-style data sets are. What moves from sample to sample
must be one of Python's own iterators (`stream_place`), or the data set tells its state
(`told_state`). The first batch of each stream, each one at which more than that iterator has moved,
and the end of a stream are always really made.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from supervisor.errors import pass_on
from supervisor.worker.recording.loading.executed_code import ExecutedCode
from supervisor.worker.recording.loading.fingerprint import CannotTell, fingerprint
from supervisor.worker.recording.loading.loading_proof import PROFILED, TIMED, LoadingProof
from supervisor.worker.recording.loading.named_globals import is_users
from supervisor.worker.recording.loading.stream_place import StreamPlace, place_of
from supervisor.worker.recording.loading.told_state import tells_state, told_state

_UNSETTLED = 16
"""So many batches in a row before which more had moved than one iterator: it is no use."""
_SHARE, _ALLOWANCE_S = 0.02, 0.2
"""Of the time of loading, and beyond it, that comparing may take."""
_HEAD = struct.Struct("<HIQqBH")
_FOLLOWS, _GIVEN_UP, _STATE = 1, 2, 4
_SIZE = struct.Struct("<I")
_KEPT_STATES = 64
"""Behind the newest batches: those of the last steps before a checkpoint are made."""
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
        state: what the data set told before it; empty where that is not needed.
    """

    proof: int
    stream: int
    fetches: int
    left: int = 0
    follows: bool = False
    is_given_up: bool = False
    drawn: bytes = b""
    fetch: bytes = b""
    state: str = ""

    def pack(self) -> bytes:
        state = self.state.encode()
        flags = _FOLLOWS * self.follows + _GIVEN_UP * self.is_given_up + _STATE * bool(state)
        head = _HEAD.pack(self.proof, self.stream, self.fetches, self.left, flags, len(self.drawn))
        told = _SIZE.pack(len(state)) + state if state else b""
        return head + told + self.drawn + self.fetch

    @classmethod
    def unpack(cls, data: bytes) -> StreamMark:
        proof, stream, fetches, left, flags, size = _HEAD.unpack_from(data)
        start, state = _HEAD.size, ""
        if flags & _STATE:
            (told,) = _SIZE.unpack_from(data, start)
            start += _SIZE.size + told
            state = data[start - told : start].decode()
        drawn, fetch = data[start : start + size], data[start + size :]
        follows, given_up = bool(flags & _FOLLOWS), bool(flags & _GIVEN_UP)
        return cls(proof, stream, fetches, left, follows, given_up, drawn, fetch, state)


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

    def key(self, back: int = 0) -> str:
        """Names the stream and its newest batch, or one that lies so many `back`."""
        return f"{self.proof.number}.{self.number}.{self.fetches - back}"

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
        if self.proof.tells_state:
            self.proof.told.append((self.key(), told_state(self.fetcher.dataset)))
            return 0, self.fetches > 1 and not self.fetcher.ended
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
    """One data set of iterable-style loaders without workers; see the module's docstring.

    Attributes:
        tells_state: where it stands is told by itself, and that it changes is no objection.
        told: what it told, behind the newest batches of its streams (see `Stream.key`).
    """

    def __init__(self, number: int, data: Any, collate: Any, interception: Any) -> None:
        super().__init__(number, data, collate, interception)
        self.tells_state = tells_state(data)
        self.told: deque[tuple[str, str]] = deque(maxlen=_KEPT_STATES)
        self._forms: set[str] = set()
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
            except BaseException as error:  # the user's own __getattr__
                pass_on(error)
                self.reason = f"{type(error).__name__} when it was looked at"
            self._unsettled = 0 if follows else self._unsettled + 1
            if self._unsettled > _UNSETTLED:
                self.reason = self.reason or "its generator keeps something from batch to batch"
            is_free = follows and not self.tells_state
            self._spent(0.0 if is_free else time.perf_counter() - started)
        return left, follows

    def state_before(self, stream: Stream, form: str, *, follows: bool) -> str:
        """Returns what the data set told before the newest batch of `stream`, if a replay has to
        make that one; empty if not, or if it told nothing.

        Args:
            form: shapes and types of the batch; the first of each is made.
        """
        is_made = bool(form) and (form not in self._forms or not follows)
        self._forms.add(form)
        return dict(self.told).get(stream.key(back=1), "") if is_made else ""

    def ended(self, stream: Stream) -> None:
        """A stream has come to its end."""
        self._compare_open()
        self._open = [one for one in self._open if one is not stream]

    def holds(self) -> bool:
        if super().holds():
            self._compare_open()
        return not (self.is_given_up or self.reason) and self._fetches >= PROFILED + TIMED

    def _compared_data(self) -> Any:
        return None if self.tells_state else super()._compared_data()

    def _compare_open(self) -> None:
        """Compares streams that have not ended, and forgets those that the script has left."""
        for stream in self._open if not self.reason else ():
            try:
                with self._interception.region():
                    stream.compare()
            except BaseException as why:
                pass_on(why)
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
