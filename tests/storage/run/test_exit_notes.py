"""Which failures come from outside, told by their type, number or text."""

from __future__ import annotations

import errno
import os
import socket
import urllib.error
from pathlib import Path

import pytest
import torch

from supervisor.codes import OutsideCause
from supervisor.storage.run.exit_notes import outside_cause


class ReadTimeoutError(OSError):
    """As of urllib3: no number."""


class DistBackendError(RuntimeError):
    """As of torch."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OutsideCause.DISK),
        (OSError(errno.EROFS, "Read-only file system"), OutsideCause.DISK),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), OutsideCause.DISK),
        (RuntimeError("basic_ios::clear: iostream error"), OutsideCause.DISK),
        (RuntimeError("PytorchStreamWriter failed writing file data/0"), OutsideCause.DISK),
        (RuntimeError("write failed: No space left on device"), OutsideCause.DISK),
        (OSError("Caught OSError in DataLoader worker process 0.\n[Errno 5] x"), OutsideCause.DISK),
        (MemoryError(), OutsideCause.MEMORY),
        (OSError(errno.EMFILE, "Too many open files"), OutsideCause.LIMIT),
        (ConnectionResetError(errno.ECONNRESET, "reset"), OutsideCause.CONNECTION),
        (urllib.error.HTTPError("http://a", 503, "busy", None, None), OutsideCause.CONNECTION),  # type: ignore[arg-type]
        (socket.gaierror(-2, "Name or service not known"), OutsideCause.CONNECTION),
        (DistBackendError("NCCL error"), OutsideCause.CONNECTION),
        (TimeoutError("no answer"), OutsideCause.TIMEOUT),
        (ReadTimeoutError("read"), OutsideCause.TIMEOUT),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."),
            OutsideCause.SIGNAL,
        ),
        (ValueError("loss is nan"), None),
        (IndexError("Target 12 is out of bounds."), None),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), None),
        (OSError("image file is truncated"), None),
        (torch.OutOfMemoryError("CUDA out of memory"), None),
        (ValueError("row 7: Connection timed out"), None),
    ],
)
def test_a_failure_from_outside_is_told_from_one_of_the_data(
    error: Exception, cause: OutsideCause | None
) -> None:
    assert outside_cause(error) is cause


def test_what_a_failure_came_of_counts_too() -> None:
    error = ValueError("bad sample")
    error.__cause__ = OSError(errno.EIO, os.strerror(errno.EIO))

    assert outside_cause(error) is OutsideCause.DISK


def test_torch_on_a_full_disk_is_a_refusal_of_the_disk(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")

    with pytest.raises(RuntimeError) as caught:
        torch.save({"weight": torch.zeros(100_000)}, "/dev/full")

    assert outside_cause(caught.value) is OutsideCause.DISK
