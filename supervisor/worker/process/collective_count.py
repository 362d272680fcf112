"""How many collectives this rank has entered, for the parent to see which rank hangs."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from supervisor.storage.files.mapped_file import reserve
from supervisor.storage.files.private_files import make_private
from supervisor.worker.interception.patches_process import leave_signals_to_the_script

COUNT = struct.Struct("<Q")
EVERY_S = 0.5


def entered_collectives() -> int:
    """Returns the sequence number of the script's default group; 0 where there is none."""
    group: Any = torch.distributed.group.WORLD
    return int(group._get_sequence_number_for_group()) if group is not None else 0


class CollectiveCount:
    """A thread that keeps the number in a mapped file, because a rank that hangs cannot be asked.

    A hang outlasts its naps by far, so the number is that of the hang; one that holds the
    interpreter's lock leaves the last one.

    Args:
        path: of the file.
        count: returns the number.
        tells: called as often; what they raise is ignored.
    """

    def __init__(
        self,
        path: Path,
        count: Callable[[], int] = entered_collectives,
        tells: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._path = path
        self._count = count
        self._tells = tells

    def start(self) -> None:
        """Called once, when the script has joined its group.

        Raises:
            OSError: the file cannot be made.
        """
        make_private(self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            reserve(descriptor, COUNT.size)
            memory = mmap.mmap(descriptor, COUNT.size)
        finally:
            os.close(descriptor)
        threading.Thread(
            target=self._keep, args=(memory,), name="supervisor-collectives", daemon=True
        ).start()

    def _keep(self, memory: mmap.mmap) -> None:
        leave_signals_to_the_script()
        while True:
            try:
                COUNT.pack_into(memory, 0, self._count())
            except Exception:  # the group is gone, or of a kind that does not count
                COUNT.pack_into(memory, 0, 0)
            for tell in self._tells:
                with contextlib.suppress(Exception):  # the same
                    tell()
            time.sleep(EVERY_S)
