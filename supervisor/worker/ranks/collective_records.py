"""What is left of a rank's collectives for those who look into a hang."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from supervisor.storage.files.private_files import make_private, reserve, write_private
from supervisor.worker.process.patches_process import leave_signals_to_the_script
from supervisor.worker.ranks.sequence_numbers import SequenceNumbers

_NCCL, _ANY = "_dump_nccl_trace_json", "_dump_fr_trace_json"
_KEPT = "2000"
"""Calls; as many as newer versions of torch keep by themselves."""
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DUMPS = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)


def ask_torch_to_keep_records(prefix: Path, environment: Mapping[str, str]) -> None:
    """Called before the script joins a group. What the user has set stays as it is.

    Torch's own code alone sees these variables: `os.environ` does not change. None of them makes
    torch wait for a device.

    Args:
        prefix: of the file that NCCL's own watchdog writes when a collective has timed out.
        environment: the user's.
    """
    at = 0 if hasattr(torch._C._distributed_c10d, _ANY) else -1  # older names, else a warning
    for names, value in ((_SIZE, _KEPT), (_FILE, str(prefix)), (_DUMPS, "1")):
        if not any(name in environment for name in names):
            os.putenv(names[at], value)


class CollectiveRecords:
    """Writes them into a file whenever this rank's stacks have been asked for.

    A rank that hangs cannot be asked for anything but its stacks, which `faulthandler` writes. So
    another thread looks whether their file has grown.

    Args:
        stacks: that file.
        path: for torch's records: a list of the JSON documents that it makes, as they are. Its
            other format is pickle, which nobody should load from a run directory.
    """

    def __init__(self, stacks: Path, path: Path) -> None:
        self._stacks = stacks
        self._path = path
        self._seen = 0

    def look(self) -> None:
        """Called every now and then.

        Raises:
            OSError: they cannot be written.
        """
        size = self._stacks.stat().st_size
        if size != self._seen:
            self._seen = size
            documents = b",".join(dump() for dump in _dumps())
            write_private(self._path, b"[" + documents + b"]")


def _dumps() -> list[Callable[[], bytes]]:
    c10d = torch._C._distributed_c10d
    return [getattr(c10d, name) for name in (_NCCL, _ANY) if hasattr(c10d, name)]


COUNT = struct.Struct("<Q")
EVERY_S = 0.5


def entered_collectives() -> int:
    """Returns the sequence number of the script's default group; 0 where there is none."""
    group: Any = torch.distributed.group.WORLD
    return SequenceNumbers.of(group) if group is not None else 0


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
