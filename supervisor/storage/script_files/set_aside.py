"""Sets files of the script aside during a fast-forward, and brings them back."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from supervisor.storage.files.json_files import LineFile, read_lines, to_line
from supervisor.storage.files.private_files import (
    make_private,
)
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.file_lists import is_path
from supervisor.storage.script_files.kept_versions import copy_private

_rename, _unlink, _rmdir, _mkdir = os.rename, os.unlink, os.rmdir, os.mkdir  # workers patch them

_CLOCKS_APART_S = 2.0
"""Some file systems round times to two seconds; network disks have clocks of their own."""


class SetAside:
    """The files that one rank's replay has set aside, until it reaches its target.

    Every move is listed on disk before it is made, so a replay killed at any point can be undone.
    Files go into the run directory, or are hidden in place if that is on another disk.
    """

    def __init__(self, rundir: RunDirectory, rank: int) -> None:
        self._list = rundir.aside / f"rank_{rank}.jsonl"
        self._folder = rundir.aside / f"rank_{rank}"
        self._lines = LineFile(self._list)
        self._count = 0
        self.stored: dict[str, str] = {}
        self.folded: dict[str, int] = {}
        self._named: set[str] = set()

    def take_names(self, keys: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """What stands aside comes back by other names; until it does, an undo knows the old ones.

        Args:
            keys: returns a dictionary by the new names.
        """
        before = self.stored.keys()
        self.stored, self.folded = keys(self.stored), keys(self.folded)
        self._named = self.stored.keys() - before

    def move_all(self, paths: Sequence[str]) -> None:
        """Sets files and links aside; all moves are listed on disk before the first is made.

        Raises:
            OSError: the list cannot be written, or a file cannot be moved.
        """
        places = {path: self._place() for path in paths if path not in self.stored}
        for path, to in places.items():
            self._lines.append(to_line({"moved": path, "to": to}))
        self._lines.sync()
        for path, to in places.items():
            self._rename_away(path, to)

    def move(self, path: str) -> bool:
        """Sets a file or link aside; False if one of that path is already.

        Raises:
            OSError: it cannot be moved or listed; it is where it was.
        """
        if path in self.stored:
            return False
        to = self._place()
        self._write({"moved": path, "to": to})
        self._rename_away(path, to)
        return True

    def copy(self, path: str) -> None:
        """Sets a copy aside of a file that is about to be changed in place.

        Raises:
            OSError: it cannot be read, or copy or list cannot be written.
        """
        found = os.lstat(path)
        to = self._place()
        if os.stat(os.path.dirname(to)).st_dev != found.st_dev:
            to = _beside(path, self._count)
        copy_private(path, to, found)
        self._write({"moved": path, "to": to})
        self.stored[path] = to

    def fold(self, folder: str) -> None:
        """Removes a folder that has become empty.

        Raises:
            OSError: something is in it, or it cannot be removed.
        """
        mode = stat.S_IMODE(os.lstat(folder).st_mode)
        self._write({"folder": folder, "mode": mode})
        _rmdir(folder)
        self.folded[folder] = mode

    def bring_back(self, path: str) -> bool:
        """Puts a file back in its place, if nothing is there."""
        to = self.stored.get(path)
        if to is None or os.path.lexists(path) or not os.path.lexists(to):
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if path in self._named:
            self._write({"named": path, "of": to})
        _rename(to, path)
        del self.stored[path]
        return True

    def wrote(self, path: str) -> None:
        """Notes that the replay is about to write `path`, without a trained model."""
        self._write({"wrote": path, "time": time.time()})

    def arrived(self) -> dict[str, str]:
        """Notes that the replay has reached its target: nothing will be undone any more.

        Returns:
            Where the files are that did not come back, by their paths.
        """
        self._write({"arrived": True})
        left, self.stored, self.folded = self.stored, {}, {}
        self._lines.close()
        return left

    def keep_for_a_person(self, paths: Sequence[str], left: dict[str, str], name: str) -> Path:
        """Keeps files that did not come back, under their own names, in a folder of the run.

        Args:
            paths: of the script's files.
            left: what `arrived` returned.
            name: of that folder.
        """
        folder = Path(os.path.abspath(self._folder.parent / name))
        here = os.getcwd()
        for path in paths:
            own = os.path.relpath(path, here) if path.startswith(here + os.sep) else path
            place = folder / own.lstrip(os.sep)
            with contextlib.suppress(OSError):  # of another disk: it stands beside its place
                make_private(place.parent)
                _rename(left[path], place)
        return folder

    def undo(self) -> list[str]:
        """Restores everything to how it was before a replay that did not reach its target.

        Called when no replay is under way. May be interrupted and called again.

        Returns:
            What could not be restored, one sentence each.
        """
        self._lines.close()
        self.stored = {}
        lines = read_lines(self._list)
        if not is_under_way(self._list):
            with contextlib.suppress(OSError):
                _unlink(self._list)
            return []
        problems: list[str] = []
        for line in lines:
            self._take_from_other_name(line)
        for line in lines:
            _remove_untrained(line)
        for line in lines:
            _make_folder_again(line)
        for line in lines:
            try:
                self._put_back(line)
            except OSError as error:
                problems.append(f"{line['moved']} could not be put back from {line['to']}: {error}")
        if not problems:
            _unlink(self._list)
        return problems

    def _take_from_other_name(self, line: dict[str, Any]) -> None:
        path, to = line.get("named"), line.get("of")
        if not (is_path(path) and is_path(to)) or os.path.lexists(to):
            return
        if os.path.dirname(to) == str(self._folder) and os.path.basename(to).isdigit():
            with contextlib.suppress(OSError):
                _rename(path, to)

    def _put_back(self, line: dict[str, Any]) -> None:
        path, to = line.get("moved"), line.get("to")
        if is_path(path) and is_path(to) and self._is_ours(path, to) and os.path.lexists(to):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(to, path)

    def _is_ours(self, path: str, to: str) -> bool:
        """Whether `move` makes such names; other entries of a list are not trusted."""
        folder, name = os.path.split(to)
        if folder == str(self._folder):
            return name.isdigit()
        start = f".{os.path.basename(path)}.aside-"
        return folder == os.path.dirname(path) and name.startswith(start)

    def _rename_away(self, path: str, to: str) -> None:
        try:
            _rename(path, to)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            to = _beside(path, self._count)
            self._write({"moved": path, "to": to})
            _rename(path, to)
        self.stored[path] = to

    def _place(self) -> str:
        make_private(self._folder)
        while True:
            self._count += 1
            to = self._folder / str(self._count)
            if not os.path.lexists(to):
                return str(to)

    def _write(self, line: dict[str, Any]) -> None:
        self._lines.append(to_line(line))
        self._lines.sync()


def undo_unfinished(rundir: RunDirectory, ranks: Iterable[int]) -> list[str]:
    """Restores the script's files after fast-forwards of these ranks that did not arrive.

    Returns:
        What could not be restored, one sentence each.
    """
    problems = []
    for rank in ranks:
        try:
            problems += SetAside(rundir, rank).undo()
        except OSError as error:
            problems.append(f"files that a fast-forward set aside: {error}")
    return problems


def is_under_way(listed: Path) -> bool:
    """Whether files stand aside of a replay that has neither arrived nor been undone.

    Args:
        listed: its list.

    Raises:
        OSError: it cannot be read.
    """
    lines = read_lines(listed)
    return bool(lines) and lines[-1].get("arrived") is not True


def remove(path: str) -> None:
    """Removes a file or folder that was set aside, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            _unlink(path)


def _beside(path: str, number: int) -> str:
    folder, own = os.path.split(path)
    return os.path.join(folder, f".{own}.aside-{number}")  # hidden: scripts list their checkpoints


def _remove_untrained(line: dict[str, Any]) -> None:
    """Removes a file that the replay wrote; an older one is not its own."""
    path, since = line.get("wrote"), line.get("time")
    if not is_path(path) or not isinstance(since, (int, float)):
        return
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and found.st_mtime >= since - _CLOCKS_APART_S:
            _unlink(path)


def _make_folder_again(line: dict[str, Any]) -> None:
    path, mode = line.get("folder"), line.get("mode")
    if is_path(path) and isinstance(mode, int) and not os.path.lexists(path):
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _mkdir(path, mode & 0o777)
