"""Whether samples of an `IterableDataset` can be left out of a fast-forward.

Only a data set that tells its state (`dataset_state`) can go on at another place: what other
streams hold from sample to sample nobody can see, so all their samples are made again. The first
fetches are watched as those of map-style data sets are; that the data set itself changes is no
objection.

Where a library's stream of samples stands, as its own `state_dict` tells it.

Hugging Face's iterable data sets have it, for example. What it tells may be incomplete (a shuffle
buffer is lost): so a replay that goes on from such a state compares the batches behind it.
"""

from __future__ import annotations

import json
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor.errors import pass_on
from supervisor.worker.core.budget import Share
from supervisor.worker.loading.fingerprint import CannotTell, is_users
from supervisor.worker.loading.loading_proof import LoadingProof

_MISSING = object()


def tells_state(data: Any) -> bool:
    """Whether a library's data set can tell where it stands, and go on from there.

    Methods of the script's are not called at times at which it does not call them.
    """
    told, taken = (getattr(type(data), name, None) for name in ("state_dict", "load_state_dict"))
    codes = [getattr(method, "__code__", None) for method in (told, taken)]
    return all(code is not None and not is_users(code.co_filename) for code in codes)


def dataset_state(data: Any) -> str:
    """Returns the state as JSON.

    Raises:
        CannotTell: there is more in it than numbers, texts, lists and dictionaries.
    """
    state = data.state_dict()
    try:
        text = json.dumps(state)
    except (TypeError, ValueError) as error:
        raise CannotTell(f"what it tells of its state: {error}") from error
    if json.loads(text) != state:
        raise CannotTell("what it tells of its state is more than numbers and texts")
    return text


def go_on_from(fetcher: Any, state: str) -> Callable[[], None]:
    """Gives a fetcher an iterator that stands at `state`.

    Returns:
        To be called when the first sample was made: the data set forgets that it was to begin
        there, so that its next epoch begins at its start.
    """
    data = fetcher.dataset
    own = vars(data)
    before = dict(own)
    data.load_state_dict(json.loads(state))
    loaded = {k: v for k, v in own.items() if before.get(k, _MISSING) is not v}
    fetcher.dataset_iter = iter(data)

    def forget() -> None:
        for name, value in loaded.items():
            if own.get(name, _MISSING) is value:  # nothing has used it up
                if name in before:
                    own[name] = before[name]
                else:
                    del own[name]

    return forget


_BUDGET = Share(0.02, allowance_s=0.2)
"""Of the time of loading, for asking for the state."""
_HEAD = struct.Struct("<HIQ8xBH")
"""Of its eight unused bytes older replay logs made use."""
_FOLLOWS, _GIVEN_UP, _STATE = 1, 2, 4
_SIZE = struct.Struct("<I")
_KEPT_STATES = 64
"""Behind the newest batches: those of the last steps before a checkpoint are made."""
_PLACE = struct.Struct("<HIQ")


@dataclass(frozen=True, slots=True)
class StreamMark:
    """What the replay log keeps of a batch of a stream.

    Attributes:
        proof: number of the proof.
        stream: number among the streams of that data set.
        fetches: batches that this stream has made, this one included.
        follows: it is neither the first of its stream nor at its end.
        is_given_up: nothing is noted of the data set from here on.
        drawn: see `training_state.draws`.
        fetch: the `FetchMark`, packed.
        state: what the data set told before it; empty where that is not needed.
    """

    proof: int
    stream: int
    fetches: int
    follows: bool = False
    is_given_up: bool = False
    drawn: bytes = b""
    fetch: bytes = b""
    state: str = ""

    def pack(self) -> bytes:
        state = self.state.encode()
        flags = _FOLLOWS * self.follows + _GIVEN_UP * self.is_given_up + _STATE * bool(state)
        head = _HEAD.pack(self.proof, self.stream, self.fetches, flags, len(self.drawn))
        told = _SIZE.pack(len(state)) + state if state else b""
        return head + told + self.drawn + self.fetch

    @classmethod
    def unpack(cls, data: bytes) -> StreamMark:
        proof, stream, fetches, flags, size = _HEAD.unpack_from(data)
        start, state = _HEAD.size, ""
        if flags & _STATE:
            (told,) = _SIZE.unpack_from(data, start)
            start += _SIZE.size + told
            state = data[start - told : start].decode()
        drawn, fetch = data[start : start + size], data[start + size :]
        follows, given_up = bool(flags & _FOLLOWS), bool(flags & _GIVEN_UP)
        return cls(proof, stream, fetches, follows, given_up, drawn, fetch, state)


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

    @property
    def fetcher(self) -> Any:
        return self._fetcher()

    def key(self, back: int = 0) -> str:
        """Names the stream and its newest batch, or one that lies so many `back`."""
        return f"{self.proof.number}.{self.number}.{self.fetches - back}"

    def packed(self) -> bytes:
        """Which stream and batch this is, as the replay log keeps it beside a state or an end."""
        return _PLACE.pack(self.proof.number, self.number, self.fetches)


class StreamProof(LoadingProof):
    """One data set of iterable-style loaders without workers; see the module's docstring.

    Attributes:
        tells_state: it does; otherwise it is given up at its first batch.
        told: what it told, behind the newest batches of its streams (see `Stream.key`).
    """

    def __init__(self, number: int, data: Any, collate: Any, call_state: Any) -> None:
        super().__init__(number, data, collate, call_state)
        self.tells_state = tells_state(data)
        self.reason = "" if self.tells_state else "it does not tell where it stands"
        self.told: deque[tuple[str, str]] = deque(maxlen=_KEPT_STATES)
        self._forms: set[str] = set()
        self._streams = 0
        self._loading_s = self._telling_s = 0.0

    def start(self, fetcher: Any) -> Stream:
        """A new iterator over the data set."""
        self._streams += 1
        return Stream(self, fetcher, self._streams - 1)

    def make(self, stream: Stream, load: Callable[[], Any]) -> Any:
        """Returns what `load` does; called for every batch that is really made."""
        stream.fetches += 1
        started = time.perf_counter()
        batch = self.watch((), load)
        self._loading_s += time.perf_counter() - started
        return batch

    def settle(self, stream: Stream) -> bool:
        """Called behind each batch that was made: whether it is one in the middle of its stream.
        Sets `reason` where its state cannot be told."""
        if self.reason:
            return False
        started = time.perf_counter()
        try:
            with self._call_state.region():
                self.told.append((stream.key(), dataset_state(stream.fetcher.dataset)))
        except CannotTell as why:
            self.reason = str(why)
        except BaseException as error:  # a library's own
            pass_on(error)
            self.reason = f"{type(error).__name__} when it was asked for its state"
        self._telling_s += time.perf_counter() - started
        if not _BUDGET.allows(self._telling_s, self._loading_s):
            self.reason = self.reason or "asking for its state takes too long"
        return not self.reason and stream.fetches > 1 and not stream.fetcher.ended

    def state_before(self, stream: Stream, form: str, *, follows: bool) -> str:
        """Returns what the data set told before the newest batch of `stream`, if a replay has to
        make that one; empty if not, or if it told nothing.

        Args:
            form: shapes and types of the batch; the first of each is made.
        """
        is_made = bool(form) and (form not in self._forms or not follows)
        self._forms.add(form)
        return dict(self.told).get(stream.key(back=1), "") if is_made else ""

    def _compared_data(self) -> Any:
        return None
