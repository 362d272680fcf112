"""Memory of the parent's in which ranks keep their newest states, so that these outlive them."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

HEAD_BYTES = 4096
"""Before everything else in a place: one page."""
PLACES = 2
"""Of each rank, in turn: one that is killed while it copies has the state before that, and one
that is quicker than the others still has what they have."""

_HEAD = struct.Struct("<8sQqQQQ")
_MAGIC = b"kept\0\0\0\1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the first page of a place says of the state in it.

    Attributes:
        step: steps done.
        at, length: where its description lies, in bytes.
        checksum: of the description.
    """

    step: int
    at: int
    length: int
    checksum: int


def write_head(descriptor: int, head: Head | None) -> None:
    """Says that a place holds a whole state; None: that it holds none, before one is copied.

    Raises:
        OSError: the memory is gone.
    """
    told = (0, -1, 0, 0, 0) if head is None else (1, head.step, head.at, head.length, head.checksum)
    os.pwrite(descriptor, _HEAD.pack(_MAGIC, *told), 0)


def read_head(descriptor: int) -> Head | None:
    """Returns what a place says; None if it holds no whole state.

    Raises:
        OSError: the memory is gone.
    """
    data = os.pread(descriptor, _HEAD.size, 0)
    if len(data) < _HEAD.size:
        return None
    magic, is_whole, step, at, length, checksum = _HEAD.unpack(data)
    if magic != _MAGIC or is_whole != 1:
        return None
    return Head(step=step, at=at, length=length, checksum=checksum)


class KeptMemory:
    """Files without a name, `PLACES` for each rank of this node; they vanish with this process.

    Ranks open them by the paths of `places`. A rank that is killed leaves what it has copied.
    """

    def __init__(self, ranks: int) -> None:
        """`ranks`: of this node. Where the system has no such files, there are none."""
        self._places: list[list[int]] = []
        try:
            for rank in range(ranks):
                self._places.append([])
                for place in range(PLACES):
                    name = f"supervisor-rank-{rank}-{place}"
                    self._places[-1].append(os.memfd_create(name, os.MFD_CLOEXEC))
        except (AttributeError, OSError):  # not Linux, or too many open files
            self.close()

    @property
    def places(self) -> Mapping[str, list[str]]:
        """Local rank → the paths of its places; empty if there are none."""
        me = os.getpid()
        return {
            str(rank): [f"/proc/{me}/fd/{descriptor}" for descriptor in own]
            for rank, own in enumerate(self._places)
        }

    def steps_of(self, local_rank: int) -> list[int | None]:
        """Returns the step of each of a rank's places; None for one without a whole state."""
        heads = [read_head(descriptor) for descriptor in self._places[local_rank]]
        return [None if head is None else head.step for head in heads]

    def newest_step(self) -> int | None:
        """Returns the newest step of which all ranks have a whole state; None if there is none."""
        common: set[int] | None = None
        for own in self._places:
            heads = [read_head(descriptor) for descriptor in own]
            steps = {head.step for head in heads if head is not None}
            common = steps if common is None else common & steps
        return max(common) if common else None

    def clear(self) -> None:
        """Gives the memory back; called while no rank lives."""
        for descriptor in (each for own in self._places for each in own):
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)

    def close(self) -> None:
        """As `clear`; there are no places any more."""
        for descriptor in (each for own in self._places for each in own):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._places = []
