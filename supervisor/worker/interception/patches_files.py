"""The patches that keep the script's own files right when its loop is replayed.

A text that the script writes from its start is written again with the same content, because every
value it prints is replayed. Two kinds need help: files opened for appending would get their lines
twice, and binary files (checkpoints, arrays, pictures) would hold what an untrained model gives.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib.util
import io
import os
import shutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from supervisor.worker.interception.instrument import Seen
from supervisor.worker.recording.file_sizes import FileSizes
from supervisor.worker.recording.replayed_files import ReplayedFiles


def watch_files(session: Seen, sizes: FileSizes, replayed: ReplayedFiles) -> None:
    """Patches `open` for files that are not just read, and `torch.save`.

    Called once, after `instrument`.
    """
    _patch_open(session, sizes, replayed)
    _patch_save(session, replayed)


def watch_replayed_files(session: Seen, replayed: ReplayedFiles) -> None:
    """Patches the ways to write and rename files that only a replay must see."""
    for name in ("rename", "replace"):
        _patch_pair(session, os, name, replayed.renamed)
    _patch_pair(session, os, "link", replayed.linked)
    for name in ("unlink", "remove"):
        _patch_removal(session, os, name, replayed.removed)
    _patch_removal(session, shutil, "rmtree", replayed.cleared)
    if importlib.util.find_spec("safetensors") is not None:
        _patch_safetensors(session, replayed)


def _patch_open(session: Seen, sizes: FileSizes, replayed: ReplayedFiles) -> None:
    original = builtins.open
    switch = session.switch

    @functools.wraps(original)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        appending = isinstance(mode, str) and "a" in mode
        if appending and switch.is_ours() and isinstance(file, (str, os.PathLike)):
            with contextlib.suppress(OSError):  # the script's own call will tell, if need be
                sizes.opened(os.fspath(file), replaying=switch.replaying)
        if switch.replaying and _writes_binary(file, mode) and switch.is_ours():
            with contextlib.suppress(Exception):  # ours; the script's own call follows
                kept = replayed.opened(file, mode, original)
                if kept is not None:
                    return kept
        return original(file, mode, *args, **kwargs)

    builtins.open = open_
    io.open = open_  # pathlib's way


def _writes_binary(file: Any, mode: Any) -> bool:
    path = isinstance(file, (str, os.PathLike))
    return path and isinstance(mode, str) and "w" in mode and "b" in mode


def _patch_save(session: Seen, replayed: ReplayedFiles) -> None:
    original = torch.save
    switch = session.switch

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not switch.is_ours():
            return original(obj, f, *args, **kwargs)
        if switch.replaying and isinstance(f, (str, os.PathLike)) and replayed.keeps(f):
            return None
        switch.depth += 1  # what `torch.save` reads from tensors decides nothing
        try:
            return original(obj, f, *args, **kwargs)
        finally:
            switch.depth -= 1

    torch.save = save


def _patch_pair(
    session: Seen, module: ModuleType, name: str, leaves_out: Callable[[str, str], bool]
) -> None:
    original: Callable[..., Any] = getattr(module, name)
    switch = session.switch

    @functools.wraps(original)
    def call(src: Any, dst: Any, **kwargs: Any) -> Any:
        if switch.replaying and switch.is_ours() and not kwargs:
            with contextlib.suppress(Exception):  # the script's own call will tell
                if leaves_out(os.fsdecode(src), os.fsdecode(dst)):
                    return None
        return original(src, dst, **kwargs)

    _install(module, name, original, call)


def _patch_removal(
    session: Seen, module: ModuleType, name: str, removed: Callable[[str], bool]
) -> None:
    original: Callable[..., Any] = getattr(module, name)
    switch = session.switch

    @functools.wraps(original)
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if switch.replaying and switch.is_ours() and "dir_fd" not in kwargs:
            with contextlib.suppress(Exception):  # as above
                if removed(os.fsdecode(path)):
                    return None
        return original(path, *args, **kwargs)

    _install(module, name, original, call)


def _install(module: ModuleType, name: str, original: Any, call: Any) -> None:
    """Libraries ask which functions of `os` know ``dir_fd``, and do without it otherwise."""
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in known:
            known.add(call)
    setattr(module, name, call)


def _patch_safetensors(session: Seen, replayed: ReplayedFiles) -> None:
    """Its files are written outside of Python, by the function under all of its others."""
    library: Any = importlib.import_module("safetensors.torch")
    original: Callable[..., Any] = library.serialize_file
    switch = session.switch

    @functools.wraps(original)
    def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        if switch.replaying and switch.is_ours() and replayed.keeps(filename):
            return None
        return original(tensors, filename, *args, **kwargs)

    library.serialize_file = serialize_file
