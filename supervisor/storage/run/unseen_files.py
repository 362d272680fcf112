"""Files written without our seeing it: by other programs, or from C code."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from supervisor.storage.run.nobodys_files import is_nobodys
from supervisor.storage.run.terminal_files import terminal_files

_CLOCK_S = 0.02
"""Covers that the system rounds a process's start to hundredths of a second."""

MOST_FILES = 20_000
"""Most files looked at in one folder: more are a data set, and would take longer than 50 ms."""


def unseen_files(
    folders: Iterable[str], known: Collection[str], since: float, root: str
) -> list[str]:
    """Returns the files that changed since a time and whose writer is unknown, sorted.

    Called before the script goes on in a new process. Files that a living process has open for
    writing are that process's, and left out; so is what the script writes before it imports torch,
    and what this run's parents, dead ones and those of other nodes too, have printed into. In a
    folder that all programs share (``/tmp``), changes are anybody's, and say nothing of the script.

    Args:
        folders: to look into, not below them.
        known: files whose writer is known.
        since: in file time.
        root: absolute path of the run directory.
    """
    until = process_start() - _CLOCK_S
    found: dict[tuple[int, int], str] = {}
    for folder in folders:
        if _is_shared(folder):
            continue
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MOST_FILES):
                if entry.path in known or is_nobodys(entry.path, root):
                    continue
                looked = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(looked.st_mode) and since <= looked.st_mtime < until:
                    found[(looked.st_dev, looked.st_ino)] = entry.path
    if found:
        for file in _open_elsewhere():
            found.pop(file, None)
    printed = terminal_files(root) if found else ()
    return sorted(path for path in found.values() if os.path.realpath(path) not in printed)


def _is_shared(folder: str) -> bool:
    """Whether everybody may write in a folder, and delete only what is theirs.

    Not if the script works in it.
    """
    try:
        return bool(os.stat(folder).st_mode & stat.S_ISVTX) and not os.path.samefile(folder, ".")
    except OSError:
        return False


def process_start() -> float:
    """Returns when this process was started, in file time, never late and at most 0.01 s early.

    `psutil.Process.create_time` may be a second early: the kernel tells the time of its boot in
    whole seconds.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5)
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def open_for_writing() -> list[str]:
    """Returns the files that this process has open for writing, whoever opened them: databases and
    writers in C, too."""
    found = []
    for entry in _written_by(Path("/proc/self")):
        with contextlib.suppress(OSError):  # another thread has closed it
            found.append(os.readlink(entry))
    return found


def _open_elsewhere() -> Iterable[tuple[int, int]]:
    """Yields device and inode of every file that another process of ours has open for writing."""
    for process in Path("/proc").glob("[0-9]*"):
        for entry in _written_by(process):
            with contextlib.suppress(OSError):
                looked = os.stat(entry)
                yield looked.st_dev, looked.st_ino


def _written_by(process: Path) -> Iterable[Path]:
    """Yields the entries of a process's open files that can be written."""
    with contextlib.suppress(OSError):
        for number in os.listdir(process / "fd"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                told = (process / "fdinfo" / number).read_text()
                flags = int(told.partition("flags:")[2].split()[0], 8)
                if flags & (os.O_WRONLY | os.O_RDWR):
                    yield process / "fd" / number
