"""Records what the script writes, replaces and deletes, so that a resume can restore it.

The clock from which the system takes file times.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from supervisor.storage.run.file_names import absolute, link_is_made
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.databases import Databases
from supervisor.storage.script_files.file_lists import (
    CompleteList,
    OtherRanks,
    is_nobodys,
    is_path,
    open_for_writing,
    read_other_ranks,
    unseen_files,
)
from supervisor.storage.script_files.kept_versions import (
    Change,
    KeptVersions,
    Loss,
    change_line,
    remove_kept,
)

_COARSE = 5 if sys.platform == "linux" else time.CLOCK_REALTIME  # CLOCK_REALTIME_COARSE


def file_time() -> float:
    """Returns the time that a local file written now would get, in unix seconds.

    It is some milliseconds behind `time.time`.
    """
    return time.clock_gettime(_COARSE)


_lexists = os.path.lexists

BEFORE = -1
"""The interval of files older than the run, or than the step that a replay reached."""


_CLOCK_S = 0.05
"""Times of files may be that much ahead of the clock from which the system takes them."""
_SMALL = 64 << 10
"""Bytes of a folder that is made again rather than kept, if it lies beside results."""


class ScriptFiles:
    """The record of one rank's own files, by intervals: one begins at each checkpoint.

    When the script replaces or deletes a file, its content at the newest checkpoint is kept in the
    run directory until the checkpoint after the next. Temporary and most hidden files are left out.

    Args:
        rundir, rank: whose files.
        is_training: whether an update was made; files written before and read again are data.
        tell: called once, with why the record is incomplete.

    Attributes:
        interval: the current one; 0 before the first checkpoint.
        is_replay: a fast-forward is under way; files it makes belong to earlier intervals.
        at_interval: called when an interval begins.
        replayed: files that a fast-forward was seen to write.
        root: absolute path of the run directory.
        texts: what differs by nature → what it was when the names of this record were taken.
        early: files made before the training, of which it is noted whether they are read.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        rank: int,
        is_training: Callable[[], bool] = lambda: True,
        tell: Callable[[str], None] = lambda problem: None,
    ) -> None:
        self.interval = 0
        self._saved = 0
        self._expected: float | None = None
        self._kept = 0
        self.is_replay = False
        self.at_interval: Callable[[], None] = lambda: None
        self.root = os.path.abspath(rundir.root)
        self._folder, self._rank = rundir.script_files, rank
        self._list = CompleteList(self._folder / f"rank_{rank}.jsonl", self._all_lines, tell)
        self.databases = Databases(rundir, rank, tell)
        self._versions = KeptVersions(self._folder / f"rank_{rank}")
        self._is_training = is_training
        self._made: dict[str, int] = {}
        self._folders: dict[str, int] = {}
        self.early: set[str] = set()
        self._read: set[str] = set()
        self._changes: dict[str, dict[int, Change]] = {}
        self._began: dict[int, float] = {}
        self.texts: dict[str, str] = {}
        self.replayed: set[str] = set()
        self._touched: set[str] = set()
        self._open_in_c: set[str] = set()
        self._looked_at: set[str] = set()
        for line in self._list.read():
            self._load(line)

    # --- called just before the script does it -------------------------------------------------

    def writes(self, path: str, *, anew: bool) -> None:
        """`path` is opened for writing; with `anew` it is truncated."""
        self._opens(path, Loss.CONTENT if anew else None)

    def changes(self, path: str) -> None:
        """`path` is opened for reading and writing: parts of it may be overwritten."""
        self._opens(path, Loss.PART)

    def goes(self, path: str) -> None:
        """The name `path` is deleted, or given to another file."""
        name = absolute(path)
        if not self.leaves_out(name) and _lexists(name):
            self._keep(name, Loss.NAME)

    def clears(self, path: str) -> None:
        """The folder `path` is deleted with all that is in it."""
        for folder, _, names in os.walk(path):
            for name in names:
                self.goes(os.path.join(folder, name))

    def renames(self, source: str, target: str) -> None:
        """`target` becomes what `source` is, a file or a folder."""
        source, target = absolute(source), absolute(target)
        if not os.path.isdir(source) or os.path.islink(source):
            self.goes(source)
            (self.links if os.path.islink(source) else self.becomes)(target)
            return
        self.makes_folder(target)
        for folder, _, names in os.walk(source):
            there = target + folder[len(source) :]
            if folder != source:
                self.makes_folder(there)
            for name in names:
                self.goes(os.path.join(folder, name))
                self.becomes(os.path.join(there, name))

    def becomes(self, path: str) -> None:
        """`path` becomes the name of a complete file or link."""
        name = absolute(path)
        if self.leaves_out(name):
            return
        if self.is_replay:
            self.replayed.add(name)
        if _lexists(name):
            self._is_replaced(name)
            self._keep(name, Loss.NAME)
        else:
            self._makes(name)

    def links(self, path: str) -> None:
        """`path` becomes a link."""
        self.becomes(path)
        link_is_made(path)

    def makes_folder(self, path: str) -> None:
        name = absolute(path)
        if is_nobodys(name, self.root) or _lexists(name):
            return
        self._begin_expected()
        if not (self.is_replay and name in self._folders):
            self._folders[name] = self._now()
            self._list.append({"folder": name, "interval": self._now()})

    def leaves_out(self, path: str) -> bool:
        """Whether a file is no result of the script, or part of a database."""
        return path in self.databases or is_nobodys(path, self.root, self._holds_results)

    def reads(self, path: str) -> None:
        """Called for every file that is read; usually one look-up."""
        if self.early:
            name = absolute(path)
            if name in self.early and name not in self._read:
                self._read.add(name)
                self._list.append({"read": name})

    def begin_interval(self) -> int:
        """Begins an interval, as a checkpoint copies its state; returns its number."""
        self.at_interval()
        self._look_at_open_files()
        self._expected = None
        self._begin(file_time())
        earlier, self._saved = self._saved, self.interval
        self._drop_versions(lambda number, _: number < earlier)
        return self.interval

    def expect_interval(self) -> tuple[int, float]:
        """A state was copied that may be saved later: an interval begins with the next change.

        What was kept for earlier such states, and for no checkpoint, goes; but that of the last
        one stays, because a process that is killed may leave that one.

        Returns:
            The interval's number, and when it begins, in file time; see `begin_afterwards`.
        """
        before, self._kept = self._kept, self.interval + 1
        self._drop_versions(
            lambda number, others: (
                number < before and any(self._saved <= other < number for other in others)
            )
        )
        self._expected = file_time()
        return self._kept, self._expected

    def expected_interval(self) -> int:
        """Returns the interval that began with the last `expect_interval`: its state is saved."""
        self._begin_expected()
        return self.interval

    def begin_afterwards(self, interval: int, began: float) -> None:
        """A killed process's state is saved, as `expect_interval` told of it there: its interval
        begins now, unless a change has begun it."""
        if self.interval == interval - 1:
            self._begin(began)

    def _begin_expected(self) -> None:
        if self._expected is not None and not self.is_replay:
            began, self._expected = self._expected, None
            self._begin(began)

    def _begin(self, time: float) -> None:
        self.interval += 1
        self._began[self.interval] = time
        self._list.append({"begins": self.interval, "time": time})

    def failed(self, error: Exception) -> None:
        """Notes an error of ours: the record is incomplete."""
        self._list.failed(error)

    # --- what a resume asks --------------------------------------------------------------------

    def results(self, *, with_data: bool = False) -> tuple[list[str], list[str]]:
        """Files and folders that the script made and that still exist.

        All in such a folder counts, whoever wrote it, but for sockets, which are their process's,
        and for what other ranks have written: they see to that themselves. Data that the script
        downloaded or prepared before training, and read again, does so only `with_data`: what lies
        in a folder without results of the training.
        """
        others = self._other_ranks()
        theirs = others.files - self._made.keys()
        seen_to = tuple(os.path.join(folder, "") for folder in others.of_lower_ranks)
        folders = [name for name in self._folders if os.path.isdir(name)]
        found = {name: None for name in self._made if _lexists(name)}
        for inner, subfolders, names in (walked for f in folders for walked in os.walk(f)):
            links = [each for each in subfolders if os.path.islink(os.path.join(inner, each))]
            if not os.path.join(inner, "").startswith(seen_to):
                here = (os.path.join(inner, name) for name in [*names, *links])
                found.update({name: None for name in here if name not in theirs})
        data = set() if with_data else self._data(found)
        data |= {f for f in found if f in self.databases}
        files = [f for f in found if f not in data and not os.path.isdir(f) and not _is_socket(f)]
        return files + [f for f in found if os.path.islink(f) and os.path.isdir(f)], folders

    def _data(self, found: Iterable[str]) -> set[str]:
        """Returns what was made before the training and read again.

        What was made with it in one folder, and not changed since, stays with it: libraries in C
        write and read without being seen. The description of a run that lies above its results is
        none, nor is a small folder beside them: a run of the same name must not be there yet.
        """
        began = min(self._began.values(), default=0.0)
        beside = {
            name
            for name in {*found, *self.early}
            if (name in self.early or name not in self._made) and _is_older(name, began)
        }
        holding: set[str] = set()
        for name in self._made.keys() - self.early:
            folder = os.path.dirname(name)
            while folder in self._folders and folder not in holding:
                holding.add(folder)
                folder = os.path.dirname(folder)
        roots = {name: self._folder_of(name, holding) for name in self._read | beside}
        sizes: Counter[str] = Counter()
        for name, root in roots.items():
            sizes[root] += _size(name) if os.path.dirname(root) in holding else _SMALL
        of_data = {roots[name] for name in self._read if sizes[roots[name]] >= _SMALL} - {""}
        return {
            name
            for name, root in roots.items()
            if root in of_data
            or (name in self._read and not root and os.path.dirname(name) not in holding)
        }

    def _folder_of(self, name: str, holding: Collection[str]) -> str:
        """The outermost folder around a file that the script made and that has no results of the
        training; empty for none."""
        found, folder = "", os.path.dirname(name)
        while folder in self._folders and folder not in holding:
            found, folder = folder, os.path.dirname(folder)
        return found

    def folders(self) -> list[str]:
        """Those that the script made, the newest last."""
        return list(self._folders)

    def changed_since(self, interval: int) -> dict[str, Change]:
        """What was replaced or deleted of the files that existed when `interval` began."""
        found = {}
        for path, changes in self._changes.items():
            later = [changes[n] for n in sorted(changes) if n >= interval]
            first = next((change for change in later if change.made < interval), None)
            if first is not None:
                found[path] = first
        return found

    def problem_at(self, interval: int) -> str:
        """Why the record since `interval` is incomplete; empty if it is complete."""
        lost = "" if self.interval >= interval else "their record is gone, or ends earlier"
        return self._list.problem or lost

    def began_at(self, interval: int) -> float | None:
        """When an interval began, in file time; None if unknown."""
        return self._began.get(interval)

    def unseen(self) -> list[str]:
        """Files beside those that the script wrote that changed after the run's first checkpoint,
        and it is not known by whom; called when no process of the script is alive."""
        if not self._began:
            return []
        others = self._other_ranks()
        known = self._made.keys() | self._touched | self._changes.keys() | others.files
        looked_after = tuple(folder + os.sep for folder in self._folders.keys() | others.folders)
        if self._open_in_c:
            known = known | _real(known)
        written = self._made.keys() | self._touched | self._changes.keys() | self._open_in_c
        outside = {os.path.dirname(name) for name in written if not name.startswith(looked_after)}
        found = unseen_files(outside, known, min(self._began.values()), self.root)
        return [name for name in found if name not in self.databases]

    def was_made_since(self, path: str, interval: int) -> bool | None:
        """Whether a file or folder was made after `interval` began; None if nobody saw it."""
        made = self._made.get(path, self._folders.get(path))
        return None if made is None else made >= interval

    def continue_at(self, interval: int, gone: set[str]) -> None:
        """Notes that the script's files are as they were when `interval` began, which begins again.

        Args:
            interval: of the checkpoint; later notes are dropped.
            gone: files that were set aside.
        """
        self.interval, self._saved, self.is_replay = interval, interval, False
        self._kept, self._expected = 0, None
        self._made = {
            name: min(made, interval - 1) for name, made in self._made.items() if name not in gone
        }
        self._folders = {name: min(made, interval - 1) for name, made in self._folders.items()}
        self._drop_versions(lambda number, _: number >= interval)
        self._list.rewrite()

    def take_names(
        self, keys: Callable[[dict[str, Any]], dict[str, Any]], texts: dict[str, str]
    ) -> None:
        """The same files have other names from here on; on disk with the next `continue_at`.

        Args:
            keys: returns a dictionary by the new names.
            texts: what differed by nature when the checkpoint's process began → what it is now.
        """
        self._made, self._folders = keys(self._made), keys(self._folders)
        self._changes = keys(self._changes)
        self.early, self._read = set(keys(_none(self.early))), set(keys(_none(self._read)))
        self._touched = set(keys(_none(self._touched)))
        self._open_in_c = set(keys(_none(self._open_in_c)))
        self.texts = texts

    def forget(self, gone: set[str]) -> None:
        """Files and folders were set aside for good: the script makes them once more."""
        self._folders = {name: n for name, n in self._folders.items() if name not in gone}
        self._read -= gone
        self.early -= gone
        self.continue_at(self.interval, gone)

    def begin_anew(self) -> None:
        """Starts over, because the training departs from the recorded one: nothing is restored."""
        self.databases.forget()
        if self._made or self._changes:
            self.continue_at(self.interval + 1, set())

    def stop(self) -> None:
        """The run is completed: nothing will be restored any more."""
        self._drop_versions(lambda number, _: True)

    def _other_ranks(self) -> OtherRanks:
        return read_other_ranks(self._folder, self._rank)

    def _look_at_open_files(self) -> None:
        """Notes files that are open for writing and that nobody was seen to open (a database)."""
        new = {name for name in open_for_writing() if name not in self._looked_at}
        self._looked_at |= new
        if new:
            new -= _real(self._made.keys() | self._touched)
        for name in new:
            if os.path.isfile(name) and not self.leaves_out(name):
                self._open_in_c.add(name)
                self._list.append({"open_in_c": name})

    # --- helpers -------------------------------------------------------------------------------

    def _holds_results(self, folder: str) -> bool:
        return folder in self._folders or any(os.path.dirname(n) == folder for n in self._made)

    def _drop_versions(self, goes: Callable[[int, Collection[int]], bool]) -> None:
        """Removes the contents that `goes` selects by interval and a file's other intervals."""
        for path, changes in list(self._changes.items()):
            for number in [n for n in changes if goes(n, changes)]:
                remove_kept(changes.pop(number).kept)
            if not changes:
                del self._changes[path]

    def _now(self) -> int:
        return BEFORE if self.is_replay else self.interval

    def _makes(self, name: str) -> None:
        self._begin_expected()
        now = self._now()
        if self._made.get(name) == now or (self.is_replay and name in self._made):
            return
        self._made[name] = now
        line: dict[str, Any] = {"made": name, "interval": now}
        if not self._is_training() and not self.is_replay:
            self.early.add(name)
            line["early"] = True
        self._list.append(line)

    def _opens(self, path: str, loss: Loss | None) -> None:
        name = absolute(path)
        if os.path.islink(name):
            name = os.path.realpath(name)
        if self.leaves_out(name):
            return
        if self.is_replay:
            self.replayed.add(name)
        if _lexists(name):
            if name not in self._touched:
                self._touched.add(name)
                self._list.append({"touched": name})
            if loss is not None:
                self._keep(name, loss)
        elif loss is not Loss.PART:
            self._makes(name)

    def _is_replaced(self, name: str) -> None:
        """A file that the training replaces is none of the data that were prepared for it."""
        if name in self.early and self._is_training() and not self.is_replay:
            self._list.append({"replaced": name})
            self._forget_early(name)

    def _forget_early(self, name: str) -> None:
        self.early.discard(name)
        self._read.discard(name)

    def _keep(self, name: str, loss: Loss) -> None:
        """Keeps the content that `name` had when the interval began; once an interval."""
        self._begin_expected()
        changes = self._changes.get(name, {})
        made = self._made.get(name, BEFORE)
        if self.is_replay or not self.interval or self.interval in changes or made == self.interval:
            return
        for change in self._versions.keep(name, loss, self.interval, made):
            self._changes.setdefault(name, {})[self.interval] = change
            self._list.append(change_line(name, change))

    def _all_lines(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = [{"begins": n, "time": t} for n, t in self._began.items()]
        lines.append({"begins": self.interval})
        for name, made in self._made.items():
            early = {"early": True} if name in self.early else {}
            lines.append({"made": name, "interval": made, **early})
        lines += [{"folder": name, "interval": made} for name, made in self._folders.items()]
        lines += [{"read": name} for name in self._read]
        lines += [{"touched": name} for name in self._touched]
        lines += [{"open_in_c": name} for name in self._open_in_c]
        lines += [{"text": old, "is": new} for old, new in self.texts.items()]
        for name, changes in self._changes.items():
            lines += [change_line(name, change) for change in changes.values()]
        return lines

    def _load(self, line: dict[str, Any]) -> None:
        number = line.get("interval")
        if isinstance(line.get("begins"), int):
            self.interval = line["begins"]
            if isinstance(line.get("time"), float):
                self._began[self.interval] = line["time"]
        elif is_path(line.get("read")):
            self._read.add(line["read"])
        elif is_path(line.get("replaced")):
            self._forget_early(line["replaced"])
        elif is_path(line.get("touched")):
            self._touched.add(line["touched"])
        elif is_path(line.get("open_in_c")):
            self._open_in_c.add(line["open_in_c"])
        elif isinstance(line.get("text"), str) and isinstance(line.get("is"), str):
            self.texts[line["text"]] = line["is"]
        elif isinstance(number, int) and is_path(line.get("made")):
            self._made[line["made"]] = number
            self.early.update([line["made"]] if line.get("early") is True else [])
        elif isinstance(number, int) and is_path(line.get("folder")):
            self._folders[line["folder"]] = number
        elif isinstance(number, int) and is_path(line.get("changed")):
            change = self._versions.change_of(line, number)
            if change is not None:
                self._changes.setdefault(line["changed"], {})[number] = change


def _size(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_size
    return 0


def _is_older(path: str, time: float) -> bool:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime <= time + _CLOCK_S
    return False


def _is_socket(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    return False


def _none(names: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(names)


def _real(names: Iterable[str]) -> set[str]:
    return set(map(os.path.realpath, names))
