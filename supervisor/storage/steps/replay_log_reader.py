"""Reads a replay log again, a piece at a time: its length costs no memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import HEAD, EntryKind

_READ = frozenset(
    {
        *(EntryKind.FLOAT, EntryKind.INT, EntryKind.BOOL, EntryKind.ARRAY, EntryKind.TENSOR),
        EntryKind.UNUSED,
    }
)
"""Kinds of entries that tell what tensors held."""
_PIECE_BYTES = 1 << 16
_NO_FILE = -1


class ReplayLogReader:
    """Hands the entries of a replay log out again, up to `end`.

    What the script reads before it trains is as it is, in a replay as well; and a script that finds
    its prepared data does not read what the one that prepared them did. So `take` passes over these
    entries until `begin_training`, or until `begin_early`.

    Attributes:
        is_before_training: neither has been called, and the recorded run came to train.
        on_passed: called with the data of each `TENSOR` entry that is passed over.

    Raises:
        ReplayError: the file is missing, damaged, or shorter than `end`.
    """

    is_before_training: bool
    _is_early: bool

    def __init__(self, path: Path, *, end: int) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
            size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise ReplayError(f"{path}: cannot be read ({error}): resume approximately") from error
        if size < end:
            os.close(self._descriptor)
            raise ReplayError(
                f"{path}: {size} of {end} bytes are there: the recording is incomplete"
            )
        self._begin(end)

    @classmethod
    def empty(cls) -> ReplayLogReader:
        """An empty replay log."""
        reader = cls.__new__(cls)
        reader._descriptor = _NO_FILE
        reader._begin(0)
        return reader

    def close(self) -> None:
        """May be called again; nothing is read any more."""
        if self._descriptor != _NO_FILE:
            os.close(self._descriptor)
        self._descriptor, self._kind = _NO_FILE, 0

    def peek(self) -> int:
        """Returns the kind of the next entry, 0 at the end."""
        return self._kind

    def take(self, kind: int) -> bytes:
        """Returns the next entry's data.

        Raises:
            ReplayError: the next entry is of another kind: the script behaves differently.
        """
        if self.is_before_training:
            self._pass_reads()
        if self._kind != kind:
            found = EntryKind(self._kind).name.lower() if self._kind else "the end"
            raise ReplayError(
                f"the script now does '{EntryKind(kind).name.lower()}' where the recorded run had "
                f"'{found}'"
            )
        data = self._cursor.data()
        self._kind = self._cursor.next()
        return data

    def begin_training(self) -> bool:
        """Goes on behind the place where the recorded run began to train; does nothing afterwards.

        Returns:
            Whether it had done all that this one did before, or less: False where it loaded or
            opened more.

        Raises:
            ReplayError: it had done more behind the place of `begin_early`.
        """
        if not self.is_before_training and not self._is_early:
            return True
        if not self._is_early:
            self._pass_reads()
        did_no_more = self._kind == EntryKind.TRAINING
        if self._is_early and not did_no_more:
            raise ReplayError("the script does less before its training than it did")
        while self._kind not in (EntryKind.TRAINING, 0):
            self._pass()
        self.is_before_training = self._is_early = False
        self._kind = self._cursor.next()
        return did_no_more

    def begin_early(self, reads: int) -> None:
        """Hands out what is read before the training as well, from here on.

        Args:
            reads: how many values the script has read so far.

        Raises:
            ReplayError: the recorded run had not read as many here.
        """
        if not self.is_before_training:
            return
        while self._kind in _READ and (self._passed < reads or self._kind == EntryKind.UNUSED):
            self._pass()
        if self._passed != reads:
            raise ReplayError("the script reads other values before its training")
        self.is_before_training, self._is_early = False, True

    def _pass_reads(self) -> None:
        while self._kind in _READ:
            self._pass()

    def _pass(self) -> None:
        self._passed += self._kind in _READ and self._kind != EntryKind.UNUSED
        if self._kind == EntryKind.TENSOR:
            self.on_passed(self._cursor.data())
        self._kind = self._cursor.next()

    def find_next(self, kind: int) -> bytes | None:
        """Returns the data of the next entry of `kind` without moving; None if there is none."""
        return next((data for _, data in self.ahead(kind)), None)

    def ahead(self, *kinds: int) -> Iterator[tuple[int, bytes]]:
        """Yields kind and data of the entries of these kinds from here on, without moving."""
        found, cursor = self._kind, self._cursor.copy()
        while found:
            if found in kinds:
                yield found, cursor.data()
            found = cursor.next()

    def _begin(self, end: int) -> None:
        self._cursor = _Cursor(self._descriptor, end)
        self._kind = self._cursor.next()
        self._passed = 0
        self._is_early = False
        self.on_passed: Callable[[bytes], object] = lambda data: None
        self.is_before_training = self.find_next(EntryKind.TRAINING) is not None


class _Cursor:
    """Stands at one entry of the file; knows a piece of it."""

    __slots__ = ("_descriptor", "_end", "_following", "_piece", "_piece_start", "_size", "_start")

    def __init__(self, descriptor: int, end: int) -> None:
        self._descriptor = descriptor
        self._end = end
        self._piece = b""
        self._piece_start = 0
        self._start = 0
        self._size = 0
        self._following = 0

    def copy(self) -> _Cursor:
        other = _Cursor(self._descriptor, self._end)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def next(self) -> int:
        """Goes on to the next entry; returns its kind, 0 at the end."""
        place = self._following
        if place >= self._end:
            return 0
        kind, self._size = HEAD.unpack(self._bytes(place, HEAD.size))
        self._start = place + HEAD.size
        self._following = self._start + self._size
        if self._following > self._end:
            raise ReplayError("the recording is damaged: its last entry is not whole")
        return int(kind)

    def data(self) -> bytes:
        """Of the entry at which it stands."""
        return self._bytes(self._start, self._size)

    def _bytes(self, place: int, size: int) -> bytes:
        at = place - self._piece_start
        if at < 0 or at + size > len(self._piece):
            if size > _PIECE_BYTES:
                return self._read(place, size)
            self._piece = self._read(place, _PIECE_BYTES)
            self._piece_start, at = place, 0
        found = self._piece[at : at + size]
        if len(found) < size:
            raise ReplayError("the recording is damaged: it ends within an entry")
        return found

    def _read(self, place: int, size: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, place)
        except OSError as error:
            raise ReplayError(f"the tape cannot be read on ({error})") from error
