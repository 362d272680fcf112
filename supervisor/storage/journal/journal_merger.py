"""Merges every rank's journal and the parent's own events into ``events.jsonl``."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from supervisor.events.event import JournalEvent
from supervisor.events.parsing import parse_event
from supervisor.storage.files.json_files import parse_line
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.files.private_files import make_private
from supervisor.storage.journal.events import line_of
from supervisor.storage.run.rundir import RunDirectory

_Line = tuple[str, bytes, JournalEvent]


class JournalMerger:
    """The only writer of ``events.jsonl`` while it holds the lock: the parent, as long as it lives.

    Lines are copied byte for byte and in order, so ``events.jsonl`` itself shows how much of each
    file it holds, and the parent may die at any time without a line lost or doubled. Without the
    lock, `merge` returns nothing and `write` does nothing.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        *,
        attempt: int = 0,
        clock: Callable[[], float] = time.time,
        is_parent: bool = False,
    ) -> None:
        """`is_parent`: another process's lock is only waited for: it is a command's."""
        self.attempt = attempt
        """Set by the parent when it begins another attempt."""
        self.deleted = 0
        """How often the file was deleted, or another one put in its place."""
        self.listeners: tuple[Callable[[Sequence[JournalEvent], int], None], ...] = ()
        """Called with the events that are now in the file, and the attempt; set by the parent."""
        self._rundir = rundir
        self._clock = clock
        self._mutex = threading.RLock()
        self._abandoned = False
        self._is_parent = is_parent
        self._is_locked_out = False
        self._fd = -1
        self._offsets: dict[Path, int] = {}
        self._copied: Counter[bytes] = Counter()

    def write(self, event: JournalEvent) -> bool:
        """Appends an event of the parent's own; returns whether it is in the file.

        Its rank is null, unless it blames one.

        What the disk refuses is kept (`KeptWrites`) and told to the listeners all the same.
        """
        line = line_of(event, clock=self._clock(), attempt=self.attempt, rank=event.rank)
        with self._mutex:
            may = not self._abandoned and (self._has_lock() or not self._is_locked_out)
            written = may and KEPT.append(self, line + b"\n")
        if written:
            self._tell([event])
        return written

    @property
    def path(self) -> Path:
        return self._rundir.journal

    def append(self, data: bytes) -> None:
        """Appends all of `data` or nothing; for `KeptWrites`.

        Raises:
            OSError: the disk refuses, or another process has the lock.
        """
        if not self._has_lock():
            raise OSError(errno.EAGAIN, "cannot be opened, or another process writes it", self.path)
        before = os.fstat(self._fd).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            with contextlib.suppress(OSError):  # read-only
                os.ftruncate(self._fd, before)
            raise

    def merge(self) -> list[JournalEvent]:
        """Copies the complete new lines of all ranks, by time; returns them as events."""
        with self._mutex:
            merged = self._merge() if self._has_lock() else []
        self._tell(merged)
        return merged

    def abandon(self) -> None:
        """Stops writing for good: the file belongs to another supervisor now."""
        with self._mutex:
            self._abandoned = True
            KEPT.forget(self.path)
            self.close()

    def close(self) -> None:
        """Releases the lock; a later call takes it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> JournalMerger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, events: Sequence[JournalEvent]) -> None:
        for listener in self.listeners if events else ():
            listener(events, self.attempt)

    def _merge(self) -> list[JournalEvent]:
        batches: list[list[_Line]] = []
        ends: dict[Path, int] = {}
        for path in sorted((self._rundir.root / "events").glob("rank_*.jsonl")):
            try:
                lines, ends[path] = self._new_lines(path)
            except OSError:
                continue  # not now; its offset stays, so nothing of it is lost
            batches.append(lines)
        # A merge, not a sort: a rank's own order stays even if its clock was set back.
        merged = list(heapq.merge(*batches, key=lambda line: line[0]))
        if merged and not KEPT.append(self, b"".join(raw + b"\n" for _, raw, _ in merged)):
            return []
        self._offsets.update(ends)
        return [event for _, _, event in merged]

    def _has_lock(self) -> bool:
        if self._fd >= 0 and self._is_there():
            return True
        self.close()
        if self._abandoned:
            return False
        path = self._rundir.journal
        try:
            make_private(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(path, flags, 0o600)
        except OSError:
            return False
        try:
            self._is_locked_out = not self._is_parent
            _lock(fd)
            self._is_locked_out = False
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                os.ftruncate(fd, whole)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        self._offsets.clear()
        self._copied = Counter(data[:whole].split(b"\n"))
        return True

    def _is_there(self) -> bool:
        """Whether the file is still the run's; where it was deleted a new one is begun."""
        try:
            is_there = os.path.samestat(os.stat(self._rundir.journal), os.fstat(self._fd))
        except FileNotFoundError:
            is_there = False
        except OSError:
            return True
        self.deleted += not is_there
        return is_there

    def _new_lines(self, path: Path) -> tuple[list[_Line], int]:
        """Returns the lines of `path` that are complete and not merged, and where they end."""
        start = self._offsets.get(path)
        with open(path, "rb") as file:
            file.seek(start or 0)
            data = file.read()
        end = data.rfind(b"\n") + 1
        raw = data[:end].split(b"\n")[:-1]
        if start is None:
            raw = self._after_the_copied(raw)
        lines: list[_Line] = []
        for line in raw:
            fields = parse_line(line)
            if fields is not None and isinstance(fields.get("kind"), str):
                event = parse_event(fields)
                lines.append((event.time, line, event))
        return lines, (start or 0) + end

    def _after_the_copied(self, raw: Iterable[bytes]) -> list[bytes]:
        """Leaves out lines that ``events.jsonl`` already held when the lock was taken."""
        left: list[bytes] = []
        for line in raw:
            if self._copied[line] > 0:
                self._copied[line] -= 1
            else:
                left.append(line)
        return left


def _lock(fd: int) -> None:
    """Takes the lock, which the kernel gives back when its holder dies, however that happens.

    Raises:
        BlockingIOError: another process has it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return  # some network disks have no locks: rather a journal without than none
