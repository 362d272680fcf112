"""Files that a replay reads and writes in place: arrays that are mapped, archives, counters."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

import numpy as np

from supervisor.storage.files.private_files import own_open, own_os_open
from supervisor.storage.run.file_names import absolute
from supervisor.storage.script_files.file_lists import open_for_writing
from supervisor.storage.script_files.kept_versions import COPIED_BYTES, Change
from supervisor.storage.script_files.set_aside import SetAside

HEADER_BYTES = 4096
"""Of a file that is mapped behind its header, as `numpy.save` writes them."""


class ChangedInPlace:
    """Lets a replay have such files, and puts their content back at the target, in place.

    What is mapped (`numpy.memmap`), or open in another process, goes on in the same file. A file
    that is written anew and still open at the target keeps what was written until there.

    Args:
        aside: keeps what the files held.

    Attributes:
        by_number: files that the replay has opened anew by `os.open`.
        lost: files that do not hold what they held at the checkpoint: too large to be copied, or
            changed since through a mapping or an open file, which nobody saw. They have what they
            held last.
    """

    def __init__(self, aside: SetAside) -> None:
        self.lost: set[str] = set()
        self._aside = aside
        self._paths: set[str] = set()
        self._anew: list[tuple[IO[bytes], str]] = []
        self.by_number: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    def opened(self, name: str, mode: str, open_: Callable[[str, str], Any]) -> Any:
        """Opens a file that exists; `mode` has a "+".

        Raises:
            OSError: it cannot be put aside, or not be opened; it holds what it held.
        """
        self.keep(name, anew="w" in mode)
        file = open_(name, mode)
        if "w" in mode:
            self._anew.append((file, name))
        return file

    def keep(self, name: str, *, anew: bool) -> None:
        """Called before a file that exists is opened for writing; with `anew` what it holds goes.

        Raises:
            OSError: it cannot be put aside; it holds what it held.
        """
        if name in self._aside.stored or name in self.lost:
            return
        found = os.lstat(name)
        if anew:
            self._aside.move(name)
            os.close(own_os_open(name, os.O_CREAT | os.O_WRONLY, found.st_mode & 0o777))
        elif found.st_size > COPIED_BYTES:
            self.lost.add(name)
            return
        else:
            self._aside.copy(name)
        self._paths.add(name)

    def restore(self, changed: dict[str, Change], began: float) -> None:
        """Puts back what the files held when the checkpoint's interval began.

        Args:
            changed: of `ScriptFiles.changed_since`.
            began: when that was, in the time of files.

        Raises:
            OSError: a file could not be written.
        """
        for name in self._paths - self._still_written():
            if not os.path.isfile(name):
                self._paths.discard(name)
                continue
            source = self._aside.stored[name]
            found, change = os.stat(source), changed.get(name)
            if change is None:
                if found.st_mtime >= began:
                    self.lost.add(name)
            elif (found.st_size, found.st_mtime_ns) != (change.size, change.mtime_ns):
                if change.kept and os.path.lexists(change.kept):
                    source = change.kept
                else:
                    self.lost.add(name)
            _overwrite(name, source)

    def _still_written(self) -> set[str]:
        still = {name for file, name in self._anew if not file.closed}
        if self.by_number:
            is_open = set(open_for_writing())
            still |= {name for name in self.by_number if os.path.realpath(name) in is_open}
        for file, _ in self._anew:
            if not file.closed:
                file.flush()
        return still


def mapped_files(values: Iterable[Any]) -> set[str]:
    """Returns the files that arrays and mappings of `values` map from their start, but for a header
    of an array's: what is compared of these is what the files hold."""
    found: set[str] = set()
    sizes: set[int] = set()
    for value in values:
        if isinstance(value, mmap.mmap) and not value.closed:
            sizes.add(len(value))
        if isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap) and value.filename:
            name = absolute(value.filename)
            if value.offset < HEADER_BYTES and value.offset + value.nbytes >= os.stat(name).st_size:
                found.add(name)
    if sizes:
        found.update(name for name in _mapped() if os.path.getsize(name) in sizes)
    return found


def _mapped() -> Iterator[str]:
    """The files that this process maps so that what it writes there reaches them."""
    with own_open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[1].startswith("rw-s"):
                name = fields[5].rstrip("\n")
                if os.path.isfile(name):
                    yield name


def _overwrite(name: str, source: str) -> None:
    """Gives a file another content, without its being empty in between: it may be mapped."""
    found = os.stat(source)
    descriptor = own_os_open(name, os.O_WRONLY)
    with own_open(source, "rb") as content, os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        file.flush()
        os.ftruncate(file.fileno(), found.st_size)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns))
