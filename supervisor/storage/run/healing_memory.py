"""Memory of the parent's by which one dead rank comes back while the others wait for it.

A mailbox by which parent and ranks say how they stand, and for each rank files in which it keeps
what its collectives gave it. They have no name and outlive the ranks.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.storage.run.kept_memory import PLACES

BEGINNING = PLACES
"""Number of the log of what comes before the training and in its first steps; the others belong to
the places of `KeptMemory`."""
LOGS = PLACES + 1

LOG_HEAD = struct.Struct("<QqQ")
"""Of each log: `LOG_MAGIC`, the step of the state after which it was begun, used bytes."""
LOG_MAGIC = 0x6C6F6731

_WORD = struct.Struct("<Q")
_GENERATION, _DECLINED, _DONE = 0, 8, 16
_FIRST_SLOT, _SLOT_BYTES = 64, 512
_STATE, _ANSWERED, _LENGTH, _TEXT = 0, 8, 16, 24
_ABSENT, _TAKES_PART, _OBJECTS = 0, 1, 2


class HealingMailbox:
    """A mapped file of the parent and the ranks of one node.

    Attributes:
        generation: how often a rank was started alone in this attempt; the parent counts.
        declined: the last generation at which the parent ended all ranks instead, plus 1; 0 for
            none.
        done: the last generation in which the rank that came back has caught up.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError: the parent is gone, or has no such memory."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        except ValueError as error:
            raise OSError(0, "no room", path) from error
        finally:
            os.close(descriptor)

    @property
    def generation(self) -> int:
        return self._get(_GENERATION)

    @generation.setter
    def generation(self, value: int) -> None:
        self._put(_GENERATION, value)

    @property
    def declined(self) -> int:
        return self._get(_DECLINED)

    def decline(self) -> None:
        """Nobody waits any more: all ranks end."""
        self._put(_DECLINED, self.generation + 1)

    @property
    def done(self) -> int:
        return self._get(_DONE)

    @property
    def is_waiting(self) -> bool:
        """Whether a rank that was started alone has not caught up yet."""
        return self.done < self.generation and not self.declined

    def takes_part(self, rank: int) -> None:
        """A rank keeps what its collectives give it from here on."""
        self._put(self._slot(rank) + _STATE, _TAKES_PART)

    def object_to(self, rank: int, why: str) -> None:
        """No rank can come back alone any more; empty: it can again."""
        slot, text = self._slot(rank), why.encode()[: _SLOT_BYTES - _TEXT]
        self._memory[slot + _TEXT : slot + _TEXT + len(text)] = text
        self._put(slot + _LENGTH, len(text))
        self._put(slot + _STATE, _OBJECTS if why else _TAKES_PART)

    def objection_of(self, rank: int) -> str:
        """Returns why no rank can come back alone, by this one; empty if nothing is against it."""
        slot = self._slot(rank)
        state = self._get(slot + _STATE)
        if state == _ABSENT:
            return "its collectives are not kept"
        length = self._get(slot + _LENGTH)
        text = self._memory[slot + _TEXT : slot + _TEXT + length].decode(errors="replace")
        return text if state == _OBJECTS else ""

    def caught_up(self, rank: int, answered: int) -> None:
        """The rank that was started alone goes on with the others."""
        self._put(self._slot(rank) + _ANSWERED, answered)
        self._put(_DONE, self.generation)

    def answered(self, rank: int) -> int:
        """Returns how many collectives and messages the rank took from its log the last time."""
        return self._get(self._slot(rank) + _ANSWERED)

    def _slot(self, rank: int) -> int:
        return _FIRST_SLOT + rank * _SLOT_BYTES

    def _get(self, at: int) -> int:
        return int(_WORD.unpack_from(self._memory, at)[0])

    def _put(self, at: int, value: int) -> None:
        _WORD.pack_into(self._memory, at, value)


class HealingMemory:
    """As the parent sees it; the memory goes with its process.

    Attributes:
        mailbox: of the attempt under way.
    """

    def __init__(self, ranks: int) -> None:
        """`ranks`: of this node.

        Raises:
            OSError: the system has no such files, or too few.
        """
        self._size = _FIRST_SLOT + ranks * _SLOT_BYTES
        self._files: list[int] = []
        try:
            names = ["board", *(f"{rank}-{log}" for rank in range(ranks) for log in range(LOGS))]
            for name in names:
                self._files.append(os.memfd_create(f"supervisor-healing-{name}", os.MFD_CLOEXEC))
            os.ftruncate(self._files[0], self._size)
            self.mailbox = HealingMailbox(self._path(self._files[0]))
        except AttributeError as error:
            self.close()
            raise OSError(0, "this system has no nameless files") from error
        except OSError:
            self.close()
            raise

    def begin_attempt(self) -> None:
        """Called while no rank lives: everything of the attempt before is gone."""
        for file in self._files:
            os.ftruncate(file, 0)
        os.ftruncate(self._files[0], self._size)
        self.mailbox = HealingMailbox(self._path(self._files[0]))

    @property
    def places(self) -> Mapping[str, Any]:
        """What the ranks are told: the path of the mailbox, and of each local rank those of its
        logs."""
        logs = self._files[1:]
        return {
            "board": self._path(self._files[0]),
            "logs": {
                str(rank): [self._path(file) for file in logs[rank * LOGS : (rank + 1) * LOGS]]
                for rank in range(len(logs) // LOGS)
            },
        }

    def log_step(self, rank: int, log: int) -> int:
        """Returns after which state this log of a rank was begun; -1 if it is of no use."""
        head = os.pread(self._files[1 + rank * LOGS + log], LOG_HEAD.size, 0)
        if len(head) < LOG_HEAD.size:
            return -1
        magic, step, _ = LOG_HEAD.unpack(head)
        return int(step) if magic == LOG_MAGIC else -1

    def close(self) -> None:
        """Gives the memory back."""
        for file in self._files:
            with contextlib.suppress(OSError):
                os.close(file)
        self._files = []

    @staticmethod
    def _path(file: int) -> str:
        return f"/proc/{os.getpid()}/fd/{file}"


class OwnHealing:
    """What a rank is told of it at its start.

    Attributes:
        mailbox: its path.
        logs: rank → paths of its logs.
        kept: paths of its places of `KeptMemory`.
        step: of the kept state from which this process takes the place of a dead rank; -1: it takes
            no other's place.
        died_s: unix time of that death.
    """

    def __init__(self, told: Mapping[str, Any], kept: Sequence[str]) -> None:
        self.mailbox = str(told["board"])
        self.logs = {int(rank): list(paths) for rank, paths in told["logs"].items()}
        self.kept = tuple(kept)
        self.step = int(told.get("step", -1))
        self.died_s = float(told.get("died_s", 0.0))

    @property
    def is_healing(self) -> bool:
        """Whether this process takes the place of a dead rank."""
        return self.step >= 0


mine: OwnHealing | None = None
"""Of this process, if its rank may come back alone; set by the worker at its start."""


def takes_dead_ranks_place() -> bool:
    """Whether this process does."""
    return mine is not None and mine.is_healing
