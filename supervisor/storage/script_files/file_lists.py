"""Which files of the script are recorded, and which are not its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from supervisor.storage.files.json_files import LineFile, parse_line, to_line
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.rundir import terminal_files

_unlink = os.unlink  # workers patch it


class CompleteList:
    """A list of lines whose completeness matters, so that every loss is noted.

    Never raises: a problem is reported once and noted in the file. If even that fails, the file is
    removed, and rewritten from memory as soon as possible.

    Args:
        path: of the file.
        all_lines: returns what the file should hold.
        tell: called with why the list is not complete, once a process.

    Attributes:
        problem: why something is missing, in this process or an earlier one; empty if nothing is.
    """

    def __init__(
        self,
        path: Path,
        all_lines: Callable[[], list[dict[str, Any]]],
        tell: Callable[[str], None] = lambda problem: None,
    ) -> None:
        self.problem = ""
        self._lines = LineFile(path)
        self._all_lines = all_lines
        self._tell = tell
        self._is_lost = False

    def read(self) -> list[dict[str, Any]]:
        """Returns the lines of an earlier process; lines that cannot be read are a problem."""
        try:
            data = self._lines.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            self._lose(error)
            return []
        parsed = [parse_line(line) for line in data.split(b"\n") if line]
        lines = [line for line in parsed if line is not None]
        noted = next((line["incomplete"] for line in lines if "incomplete" in line), "")
        if noted:
            self.problem = str(noted)
        elif len(lines) < len(parsed):
            self.is_missing("lines of their record are damaged")
        return lines

    def append(self, line: dict[str, Any]) -> None:
        """Appends a line about what is in memory already."""
        if self._is_lost:
            self.rewrite()
            return
        try:
            self._lines.append(to_line(line))
        except OSError as error:
            self._lose(error)

    def rewrite(self) -> None:
        """Writes all lines anew."""
        self._lines.close()
        lines = [*([{"incomplete": self.problem}] if self.problem else []), *self._all_lines()]
        try:
            write_private(self._lines.path, b"".join(to_line(line) + b"\n" for line in lines))
            self._is_lost = False
        except OSError as error:
            self._lose(error)

    def failed(self, error: Exception) -> None:
        """Notes that something the list should hold could not be determined."""
        self.is_missing(f"{type(error).__name__}: {error}")

    def is_missing(self, why: str) -> None:
        """Notes that something is not in the list and never will be."""
        if self.problem:
            return
        self.problem = why
        self.append({"incomplete": why})
        with contextlib.suppress(Exception):  # the disk may be full or gone
            self._tell(why)

    def _lose(self, error: OSError) -> None:
        self._is_lost = True
        self._lines.close()
        with contextlib.suppress(OSError):
            _unlink(self._lines.path)
        self.failed(error)


_FILES = ("made", "touched", "changed", "open_in_c")


@dataclass(frozen=True, slots=True)
class OtherRanks:
    """As far as their records can be read.

    Attributes:
        files: whose writer is another rank.
        folders: that another rank has made.
        of_lower_ranks: those of them that a rank of a lower number has made, which sees to all in
            them whose writer nobody knows.
    """

    files: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    of_lower_ranks: set[str] = field(default_factory=set)


def read_other_ranks(folder: Path, own: int) -> OtherRanks:
    """Returns what other ranks have written; nothing where one process trains alone.

    Args:
        folder: with the record of each rank.
        own: the asking rank.
    """
    found = OtherRanks()
    for path in folder.glob("rank_*.jsonl"):
        number = path.stem.removeprefix("rank_")
        if number.isdecimal() and int(number) != own:
            with contextlib.suppress(OSError):
                for line in filter(None, map(parse_line, path.read_bytes().split(b"\n"))):
                    made = _paths(line, "folder")
                    found.files.update(_paths(line, *_FILES))
                    found.folders.update(made)
                    found.of_lower_ranks.update(made if int(number) < own else ())
    return found


def _paths(line: dict[str, object], *names: str) -> list[str]:
    return [value for value in map(line.get, names) if is_path(value)]


def is_path(value: object) -> TypeGuard[str]:
    """Whether a field of a record is the absolute path of a file."""
    return isinstance(value, str) and os.path.isabs(value) and "\0" not in value


_TRIAL = re.compile(r"[a-z0-9_]{8}")
"""Name of the file with which Python tests whether it can write in the temporary folder."""

_TEMPORARY = os.environ.get("TMPDIR", "/tmp").rstrip("/")


def is_nobodys(
    name: str, root: str, holds_results: Callable[[str], bool] = lambda folder: False
) -> bool:
    """Whether a file is temporary, hidden, a device, or in the run directory.

    A hidden file beside results is a part of them (the ``.metadata`` of a checkpoint of torch's),
    but for those in the working folder.

    Args:
        name: absolute path of a file.
        root: absolute path of the run directory.
        holds_results: whether the script has written something into a folder.

    Raises:
        OSError: the working directory is gone.
    """
    if name == root or name.startswith((root + os.sep, "/dev/", "/proc/")):
        return True
    here = os.getcwd() + os.sep
    own = name[len(here) :] if name.startswith(here) else name
    folder, last = os.path.split(name)
    if f"{os.sep}." in os.path.dirname(own) or own.startswith("."):
        return True
    if last.startswith(".") and not holds_results(folder):
        return True
    temporary = tempfile.tempdir or _TEMPORARY  # not `gettempdir`: it waits for a lock
    return folder == temporary and (
        last.startswith(tempfile.template) or _TRIAL.fullmatch(last) is not None
    )


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
