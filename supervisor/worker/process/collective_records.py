"""What torch keeps of a rank's last collectives, written down when a hang is looked into."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from supervisor.storage.files.private_files import write_private

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
