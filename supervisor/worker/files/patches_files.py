"""The patches that keep the script's own files right when its loop is replayed.

A text that the script writes from its start is written again with the same content, because every
value it prints is replayed. Two kinds need help: files opened for appending would get their lines
twice, and binary files (checkpoints, arrays, pictures) would hold what an untrained model gives.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import io
import os
import shutil
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType, ModuleType
from typing import Any

import torch

import supervisor
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.worker.core.training_hooks import Seen
from supervisor.worker.files.replayed_files import ReplayedFiles
from supervisor.worker.files.written_files import FileSizes
from supervisor.worker.outside_draws.patches_draws import patch_pathlib, replace_open
from supervisor.worker.script_state.user_frames import is_torchs_or_ours, is_users

_PATH = (str, bytes, os.PathLike)
_PACKAGE = os.path.join(os.path.dirname(supervisor.__file__), "")
_WRITING = frozenset("wax")
_READING = frozenset({"r", "rb", "rt"})


class _Files:
    """Who is asked when the script touches a file: the replay, or the record of what it does."""

    def __init__(
        self, session: Seen, sizes: FileSizes, replayed: ReplayedFiles, record: ScriptFiles
    ) -> None:
        self.call_state = session.call_state
        self.sizes = sizes
        self.replayed = replayed
        self.record = record
        self.ours = _Ours(record)

    @property
    def is_recorded(self) -> bool:
        """Other threads of the script count, too; what torch writes within a region (compiled code)
        does not."""
        call_state = self.call_state
        return call_state.active and not (
            call_state.depth and get_ident() == call_state.thread and not _is_called_by_user()
        )

    @property
    def is_ours(self) -> bool:
        """Whether the training's own thread asks, and it is the script that does."""
        call_state = self.call_state
        if not call_state.active or get_ident() != call_state.thread:
            return False
        return not call_state.depth or _is_called_by_user()

    @property
    def is_replayed(self) -> bool:
        """A thread of the script that saves what the training hands it counts, too."""
        call_state = self.call_state
        if not call_state.replaying:
            return False
        if get_ident() == call_state.thread:
            return self.is_ours
        return call_state.active and not _is_called_by_us()

    def leaves_out_whole(self, path: str | os.PathLike[str]) -> bool:
        """Asked before a whole file is written by other means than `open`."""
        if self.is_recorded:
            with self.ours:
                self.replayed.whole.wrote(os.fsdecode(path))
        if self.is_replayed and self.replayed.keeps(path):
            return True
        if self.is_recorded:
            with self.ours:
                self.record.writes(os.fsdecode(path), anew=True)
        return False


def _is_called_by_user() -> bool:
    """Whether a function of the script, or of a library that is neither Python's nor torch's, has
    called: also within a module's forward."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return True
        if file != __file__ and is_torchs_or_ours(file):
            return False
        frame = frame.f_back
    return False


def _is_called_by_us() -> bool:
    """Whether it is a thread of ours that asks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and file.startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


class _Ours:
    """Keeps an error of ours from the script, whose own call follows; the record knows of it."""

    def __init__(self, record: ScriptFiles) -> None:
        self._record = record

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._record.failed(error)
        return True


def watch_files(
    session: Seen, sizes: FileSizes, replayed: ReplayedFiles, record: ScriptFiles
) -> None:
    """Patches the ways to write, rename and delete files; called once, after `instrument`."""
    files = _Files(session, sizes, replayed, record)
    _patch_open(files)
    _patch_os_open(files)
    _patch_save(files)
    _patch_scripted_save(files)
    for name in ("rename", "replace"):
        _patch_pair(files, os, name, replayed.renamed, record.renames)
    _patch_pair(files, os, "link", replayed.linked, lambda source, target: record.becomes(target))
    _patch_pair(files, os, "symlink", _never, lambda source, target: record.links(target))
    for name in ("unlink", "remove"):
        _patch_single(files, os, name, replayed.removed, record.goes)
    _patch_single(files, shutil, "rmtree", replayed.cleared, record.clears)
    _patch_single(files, os, "mkdir", _never, record.makes_folder)
    record.at_interval = functools.partial(_patch_safetensors, files)
    record.at_interval()


def _never(*_: str) -> bool:
    return False


def _patch_open(files: _Files) -> None:
    original = builtins.open
    call_state = files.call_state
    early = files.record.early

    @functools.wraps(original)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not (call_state.active and isinstance(mode, str) and isinstance(file, _PATH)) or (
            not early and mode in _READING
        ):  # most calls: nothing depends on them
            return original(file, mode, *args, **kwargs)
        if "a" in mode and call_state.is_ours():  # a replay leaves most regions out
            with files.ours:
                files.sizes.opened(os.fspath(file), replaying=call_state.replaying)
        with files.ours:
            if files.is_recorded and "b" in mode and set(mode) & set("wx"):
                files.replayed.whole.wrote(os.fsdecode(file))
            if files.is_replayed and "b" in mode and set(mode) & set("wx+") and "a" not in mode:
                kept = files.replayed.opened(
                    os.fsdecode(file), mode, lambda name, how: original(name, how, *args, **kwargs)
                )
                if kept is not None:
                    return kept
            if files.is_recorded:
                _record_open(files.record, os.fsdecode(file), mode)
        opened = original(file, mode, *args, **kwargs)
        if _WRITING.intersection(mode) and "+" not in mode and files.is_ours:
            with files.ours:
                files.replayed.written.opened(os.fsdecode(file), opened)
        return opened

    replace_open(open_)


def _record_open(record: ScriptFiles, path: str, mode: str) -> None:
    """A text that is written anew needs no keeping: a replay writes it again as it was."""
    if set(mode) & set("wax"):
        record.writes(path, anew="b" in mode and "w" in mode)
    elif "+" in mode:
        record.changes(path)
    else:
        record.reads(path)


def _patch_os_open(files: _Files) -> None:
    original = os.open

    @functools.wraps(original)
    def open_(path: Any, flags: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            files.call_state.active
            and isinstance(flags, int)
            and flags & (os.O_WRONLY | os.O_RDWR)
            and flags & os.O_TMPFILE != os.O_TMPFILE
            and isinstance(path, _PATH)
            and kwargs.get("dir_fd") is None
        ):
            with files.ours:
                _opens_by_number(files, os.fsdecode(path), flags)
        return original(path, flags, *args, **kwargs)

    _install(os, "open", original, open_)


def _opens_by_number(files: _Files, path: str, flags: int) -> None:
    exists = os.path.lexists(path)
    if flags & os.O_EXCL and exists:
        return  # will be refused
    anew = bool(flags & os.O_TRUNC)
    if files.is_replayed and (exists or flags & os.O_CREAT):
        is_new = bool(flags & os.O_EXCL)
        files.replayed.opened_by_number(path, anew=anew, is_new=is_new)
    if not files.is_recorded:
        return
    if exists and not anew:
        files.record.changes(path)
    elif exists or flags & os.O_CREAT:
        files.record.writes(path, anew=anew)


def _patch_save(files: _Files) -> None:
    original = torch.save
    call_state = files.call_state

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            if files.leaves_out_whole(f):
                return None
        elif files.is_replayed and (isinstance(f, io.BytesIO) or not isinstance(f, io.IOBase)):
            files.replayed.saved_in_memory = True
        if not call_state.is_ours():
            return original(obj, f, *args, **kwargs)
        call_state.depth += 1  # what `torch.save` reads from tensors decides nothing
        try:
            return original(obj, f, *args, **kwargs)
        finally:
            call_state.depth -= 1

    torch.save = save


def _patch_scripted_save(files: _Files) -> None:
    """A scripted or traced module is written outside of Python, by `torch.jit.save` too."""
    scripts: Any = torch.jit._script
    original = scripts.RecursiveScriptModule.save

    @functools.wraps(original)
    def save(self: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)) and files.leaves_out_whole(os.fspath(f)):
            return None
        return original(self, f, *args, **kwargs)

    for kind in (scripts.RecursiveScriptModule, scripts.ScriptModule):
        kind.save = save


def _patch_pair(
    files: _Files,
    module: ModuleType,
    name: str,
    leaves_out: Callable[[str, str], bool],
    record: Callable[[str, str], None],
) -> None:
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def call(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        seen = files.call_state.active and kwargs.get("src_dir_fd") is None
        if seen and isinstance(src, _PATH) and isinstance(dst, _PATH):
            with files.ours:
                if files.is_recorded and not os.path.isdir(src):
                    files.replayed.whole.wrote(os.fsdecode(dst))
                if files.is_replayed and leaves_out(os.fsdecode(src), os.fsdecode(dst)):
                    return None
                if files.is_recorded:
                    record(os.fsdecode(src), os.fsdecode(dst))
        return original(src, dst, *args, **kwargs)

    _install(module, name, original, call)


def _patch_single(
    files: _Files,
    module: ModuleType,
    name: str,
    leaves_out: Callable[[str], bool],
    record: Callable[[str], None],
) -> None:
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        seen = files.call_state.active and kwargs.get("dir_fd") is None
        if seen and isinstance(path, _PATH):
            with files.ours:
                if files.is_replayed and leaves_out(os.fsdecode(path)):
                    return None
                if files.is_recorded:
                    record(os.fsdecode(path))
        return original(path, *args, **kwargs)

    _install(module, name, original, call)


def _install(module: ModuleType, name: str, original: Any, call: Any) -> None:
    """Libraries ask which functions of `os` know ``dir_fd``, and do without it otherwise."""
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in known:
            known.add(call)
    setattr(module, name, call)
    if module is os and name != "open":  # a path's `open` is that of `io`
        patch_pathlib(name, call)


def _patch_safetensors(files: _Files) -> None:
    """Its files are written outside of Python, by the function under all of its others.

    Called when each interval of the record begins: until then nothing has to be kept, and the
    library may be imported late.
    """
    name = "safetensors.torch"
    if files.call_state.replaying and importlib.util.find_spec("safetensors") is not None:
        importlib.import_module(name)
    library: Any = sys.modules.get(name)
    original: Callable[..., Any] | None = getattr(library, "serialize_file", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        if files.leaves_out_whole(filename):
            return None
        return original(tensors, filename, *args, **kwargs)

    library.serialize_file = serialize_file
