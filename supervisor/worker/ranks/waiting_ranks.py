"""Whether another rank waits for what this one exchanges only behind its next update.

What a rank does alone in a step: from the end of an update to the first backward behind it.

It waits for its batch there and runs its forward. What it waits for others falls into the backward
and the update, so a rank that is slow itself is told from those that wait for it. A forward that
gathers shards (FSDP2) waits, too: then slow ranks look less slow than they are.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from dataclasses import dataclass

from supervisor.storage.run.mailboxes import RankStatus
from supervisor.storage.steps.applied_rates import WINDOW_STEPS, OwnTimes
from supervisor.worker.outside_draws.patches_draws import running_s
from supervisor.worker.ranks.exchanges import Counts, Exchanges

STILL_FOR_S = 3.0
"""A rank that waits has done nothing for so long."""
_BUSY_SHARE = 0.05
"""Of a processor, on the main thread: who waits for a message uses less."""


@dataclass(frozen=True, slots=True)
class Note:
    """What a rank tells the others of its node twice a second, from a thread of its own.

    Attributes:
        cpu_s: time that its main thread has used on a processor.
        counts: what it has exchanged since it began, or since its replay has arrived.
    """

    cpu_s: float
    counts: Counts

    def pack(self) -> bytes:
        return json.dumps([self.cpu_s, self.counts.as_meta()]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Note:
        """Raises ValueError if these bytes are no note."""
        cpu_s, counts = json.loads(data)
        return cls(cpu_s, Counts.from_meta(counts))


class WaitingRanks:
    """Looks whether ranks that have not come to an update can come to it at all.

    A rank that only serves others (it collects data, evaluates, has no optimizer) waits in a
    collective or for a message, and this rank's part in that comes behind its update. The counts
    prove it: that rank has called for, received or sent more than this one has its part of, and
    does nothing else. Ranks that are only slow are not taken for such.

    Args:
        notes: of the ranks of this node.
        exchanges: counts what this rank exchanges.

    Attributes:
        found: place of such a rank among those of this node, once one is known.
    """

    def __init__(self, notes: RankStatus, exchanges: Exchanges) -> None:
        self._notes = notes
        self.exchanges = exchanges
        self.found: int | None = None
        self._first_looks: dict[int, tuple[float, Note]] = {}

    def tell(self) -> None:
        """Leaves this rank's note; called again and again by a thread that is not the main one."""
        thread = threading.main_thread().ident
        if thread is None or not hasattr(time, "pthread_getcpuclockid"):
            return
        cpu_s = time.clock_gettime(time.pthread_getcpuclockid(thread))
        self._notes.write(Note(cpu_s, self.exchanges.so_far()).pack())

    def start(self) -> None:
        """Called before this rank begins to wait for the others."""
        if self._first_looks:
            self._first_looks = {}

    def is_in_vain(self) -> bool:
        """Called again and again while it waits. Returns whether a rank can never come."""
        others = (rank for rank in range(self._notes.ranks) if rank != self._notes.rank)
        self.found = next((rank for rank in others if self._waits(rank)), None)
        return self.found is not None

    def _waits(self, rank: int) -> bool:
        data = self._notes.read(rank)
        if data is None:
            return False
        now_s, note = time.monotonic(), Note.unpack(data)
        if not self.exchanges.is_behind(note.counts):
            self._first_looks.pop(rank, None)
            return False
        since_s, first = self._first_looks.setdefault(rank, (now_s, note))
        for_s = now_s - since_s
        if note.counts != first.counts or note.cpu_s - first.cpu_s > for_s * _BUSY_SHARE + 0.02:
            self._first_looks[rank] = (now_s, note)
            return False
        return for_s >= STILL_FOR_S


class OwnTime:
    """Called at each step of several ranks; `times`: where windows are written."""

    def __init__(self, times: OwnTimes) -> None:
        self._times = times
        self._updated_at: float | None = None
        self._window: list[float] = []
        self._first_step = 0

    def backward_begins(self, step: int) -> None:
        """The first backward behind an update begins, that of `step`."""
        if self._updated_at is None:
            return
        first = step - step % WINDOW_STEPS
        if first != self._first_step:
            if len(self._window) == WINDOW_STEPS:  # all of them: ranks compare the same steps
                self._times.append(self._first_step, statistics.median(self._window))
            self._window.clear()
            self._first_step = first
        self._window.append(running_s() - self._updated_at)
        self._updated_at = None

    def update_ended(self) -> None:
        """An update was made."""
        self._updated_at = running_s()
