"""Whether what loader workers load can be left out of a fast-forward.

Each worker process watches itself (`WorkerWatch`) and sends a note with each batch: what it drew
from its random generators, and whether loading has changed anything so far.
"""

from __future__ import annotations

import statistics
import struct
import weakref
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

CLOSELY = 3
"""Fetches of a worker under a profiler: the second and third show what the first has set up."""
TIMED = 8
MIN_LOAD_S = 1e-3
_HEAD = struct.Struct("<QQHIBH")
_NUMBER = struct.Struct("<q")
_VERIFIED, _GIVEN_UP = 1, 2


@dataclass(frozen=True, slots=True)
class WorkerNote:
    """What a worker says of a batch.

    Attributes:
        drawn: see `training_state.draws`.
        is_verified: it was compared behind this batch: loading has changed nothing so far.
        fault: why nothing is noted any more; empty if nothing speaks against it.
        astray: why it could not begin where it was told to; empty if it could.
        seconds: that loading took; 0 under the profiler.
    """

    drawn: bytes
    is_verified: bool
    fault: str = ""
    astray: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class WorkerBatch:
    """A batch on its way from a worker, with its note."""

    data: Any
    note: WorkerNote

    def pin_memory(self, *device: Any) -> WorkerBatch:
        """Called by torch's thread that pins batches."""
        self.data = pin_memory(self.data, *device)
        return self


@dataclass(frozen=True, slots=True)
class Positioned:
    """Indices on their way to a worker that first moves its generators on."""

    indices: Any
    drawn: bytes


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Takes the place of a batch that no worker was asked for."""

    indices: Any


@dataclass(frozen=True, slots=True)
class WorkerMark:
    """What the replay log keeps of a batch that a worker loaded.

    Attributes:
        iteration: number of the loader's iterator.
        place: of the batch among all that this iterator handed out.
        worker: which one loaded it.
        is_verified: see `WorkerNote`.
        is_given_up: nothing is noted of its data set from here on.
        proof: number of the proof.
        drawn: see `WorkerNote`.
        fetch: the `FetchMark`, packed.
    """

    iteration: int
    place: int
    worker: int
    is_verified: bool
    is_given_up: bool
    proof: int
    drawn: bytes
    fetch: bytes

    def pack(self) -> bytes:
        flags = _VERIFIED * self.is_verified + _GIVEN_UP * self.is_given_up
        numbers = self.iteration, self.place, self.worker, self.proof
        return _HEAD.pack(*numbers, flags, len(self.drawn)) + self.drawn + self.fetch

    @classmethod
    def unpack(cls, data: bytes) -> WorkerMark:
        iteration, place, worker, proof, flags, size = _HEAD.unpack_from(data)
        start = _HEAD.size
        drawn, fetch = data[start : start + size], data[start + size :]
        verified, given_up = bool(flags & _VERIFIED), bool(flags & _GIVEN_UP)
        return cls(iteration, place, worker, verified, given_up, proof, drawn, fetch)


def pack_iteration(number: int) -> bytes:
    """The number of an iterator that has come to its end, as the replay log keeps it."""
    return _NUMBER.pack(number)


def unpack_iteration(data: bytes) -> int:
    """The inverse of `pack_iteration`."""
    return int(_NUMBER.unpack(data)[0])


def owner(value: Any) -> Any:
    """Of a bound method; of anything else, itself."""
    return getattr(value, "__self__", value)


class WorkerProof:
    """One data set of loaders with workers, in the training's process.

    Args:
        promised: the user's word stands for the proof.

    Attributes:
        number: among all proofs of this process: the same in a replay.
        is_given_up: nothing is noted of its batches any more, all are loaded.
        reason: why; empty while nothing speaks against it.
        is_costly: loading takes long enough to be left out.
        was_watched: workers that start from here on need not watch as many fetches closely.
    """

    def __init__(self, number: int, data: Any, collate: Any, *, promised: bool) -> None:
        self.number = number
        self.promised = promised
        self.is_given_up = False
        self.reason = ""
        self.was_watched = False
        self.is_costly = promised
        self._data = weakref.ref(data)
        self._collate = weakref.ref(owner(collate))
        self._verified = 0
        self._times: list[float] = []

    def is_of(self, data: Any, collate: Any) -> bool:
        return self._data() is data and self._collate() is owner(collate)

    def take(self, note: WorkerNote | None) -> None:
        """Called with what came with each batch of the live run, in order."""
        if note is None:
            self.reason = self.reason or "its workers cannot be watched"
        else:
            self.reason = self.reason or note.fault
            self._verified += note.is_verified
            self.was_watched = self._verified >= CLOSELY
            if note.seconds and not self.is_costly:
                self._times.append(note.seconds)
                if len(self._times) == TIMED:
                    self.is_costly = statistics.median(self._times) >= MIN_LOAD_S
                    self.reason = self.reason or ("" if self.is_costly else "loading is cheap")
        self.is_given_up = bool(self.reason)

    def holds(self) -> bool:
        """Whether a resume may leave out what the replay log says was verified."""
        return not self.is_given_up and self.is_costly


@dataclass(slots=True)
class Iteration:
    """One iterator of a loader with workers; persistent ones go on from epoch to epoch.

    Attributes:
        number: of all such iterators of this process: the same in a replay.
        plan: what a replay leaves out of it; None in a live run.
        sent: batches that workers were asked for.
        drawn: indices of those that have not been handed out yet.
        handed_out: batches that were.
        is_outdated: its workers lack what a resume has put back into their data set.
    """

    number: int
    proof: WorkerProof
    plan: Any = None
    sent: int = 0
    handed_out: int = 0
    drawn: list[Any] = field(default_factory=list)
    is_outdated: bool = False

    def is_to_be_loaded_here(self, note: WorkerNote | None) -> bool:
        """Whether the training's process has to load a batch again, and is able to: it has other
        random numbers than the worker, and must not be changed by loading."""
        return self.is_outdated and note is not None and not (note.drawn or note.fault)
