"""What a worker's process shows and says of itself."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from supervisor.errors import PassesGuards
from supervisor.storage.files.private_files import make_private, reserve
from supervisor.storage.run import handover
from supervisor.storage.run.training_places import PlaceRecorder

_COUNT = struct.Struct("<Q")


class Heartbeat:
    """Eight bytes that the parent looks at: they change while the training does anything.

    Beside them, in a file of its own, eight that `supervisor watch` looks at: how far a
    fast-forward is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map = _mapped(path)
        self._replay: mmap.mmap | None = None
        self._count = 0
        self._last_step = -1
        self._places = PlaceRecorder(path.with_suffix(".places"))

    def beat(self, step: int, *, loads: bool = False) -> None:
        """Called by batches and forwards; the first of each step is silent.

        A step's row in the flight recorder is a sign by itself, where the disk takes it; evaluation
        and slow loaders have no other than this. `loads`: it is a batch.
        """
        self._places.note(loads=loads)
        if step != self._last_step:
            self._last_step = step
            if handover.mine is not None:
                handover.mine.lives()
            return
        self._push()

    def replayed(self, steps: int) -> None:
        """Called for each batch and step of a fast-forward, which leave no row in the flight
        recorder; `steps` of them are done."""
        if self._replay is None:
            self._replay = _mapped(self._path.with_suffix(".replay"))
        _COUNT.pack_into(self._replay, 0, steps)
        self._push()

    def _push(self) -> None:
        self._count += 1
        _COUNT.pack_into(self._map, 0, self._count)


def _mapped(path: Path) -> mmap.mmap:
    """Memory of our own where the disk refuses: then the parent has the `handover` alone."""
    try:
        return _mapped_file(path)
    except OSError:
        return mmap.mmap(-1, _COUNT.size)


def _mapped_file(path: Path) -> mmap.mmap:
    make_private(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        reserve(descriptor, _COUNT.size)
        return mmap.mmap(descriptor, _COUNT.size)
    finally:
        os.close(descriptor)


RESUMABLE_EXIT = 75
TREATED_EXIT = 71
SHORT = "short"
LOADING = "loading"
_EXITS = {"interrupted": RESUMABLE_EXIT, "completed": 0}


class ExitRequest(PassesGuards, SystemExit):
    """Raised at a boundary; the user's ``finally`` blocks run, ``except Exception`` does not.

    Attributes:
        note: kind of the exit note: ``interrupted``, ``restart``, ``retry``, ``stop``, `SHORT`,
            `LOADING` or ``completed``.
        reason: one sentence for the parent.
    """

    def __init__(self, note: str, reason: str) -> None:
        super().__init__(_EXITS.get(note, TREATED_EXIT))
        self.note = note
        self.reason = reason
