"""The patches that keep the script's own files right when its loop is replayed.

A file that the script writes from its start is written again with the same content, because every
value it prints is replayed. Two kinds need help: files opened for appending would get their lines
twice, and `torch.save` would store weights that the replay does not have.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
from typing import Any

import torch

from supervisor.worker.file_sizes import FileSizes
from supervisor.worker.instrument import Seen


def watch_files(session: Seen, sizes: FileSizes) -> None:
    """Patches `open` (appending only) and `torch.save`. Called once, after `instrument`."""
    _patch_append(session, sizes)
    _patch_save(session)


def _patch_append(session: Seen, sizes: FileSizes) -> None:
    original = builtins.open
    switch = session.switch

    @functools.wraps(original)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        appending = isinstance(mode, str) and "a" in mode
        if appending and switch.is_ours() and isinstance(file, (str, os.PathLike)):
            with contextlib.suppress(OSError):  # the script's own call will tell, if need be
                sizes.opened(os.fspath(file), replaying=switch.replaying)
        return original(file, mode, *args, **kwargs)

    builtins.open = open_
    io.open = open_  # pathlib's way


def _patch_save(session: Seen) -> None:
    original = torch.save
    switch = session.switch

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not switch.is_ours():
            return original(obj, f, *args, **kwargs)
        if switch.replaying and isinstance(f, (str, os.PathLike)) and os.path.exists(f):
            return None  # what lies there is at least as new as what would be written
        switch.depth += 1  # what `torch.save` reads from tensors decides nothing
        try:
            return original(obj, f, *args, **kwargs)
        finally:
            switch.depth -= 1

    torch.save = save
