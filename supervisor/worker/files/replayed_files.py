"""Files that a fast-forward must not write: their content would be that of an untrained model.

Files that the script writes as a whole in its training, and not as a text: a replay cannot.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Mapping
from threading import get_ident
from typing import IO, Any

from supervisor.storage.files.private_files import own_os_open, own_unlink
from supervisor.storage.run.file_names import absolute
from supervisor.storage.script_files.files_at_target import folder_times
from supervisor.storage.script_files.kept_versions import COPIED_BYTES
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.storage.script_files.set_aside import SetAside
from supervisor.worker.files.changed_in_place import ChangedInPlace
from supervisor.worker.files.written_files import WrittenFiles

FILES = 2_000
"""The newest that are looked at; which of them exist is part of each checkpoint."""


class WholeFiles:
    """Which of them existed at a checkpoint, of what size and time; compared on arrival.

    Args:
        root: of the run directory; what our own threads write there is none of the script's.
    """

    def __init__(self, root: str) -> None:
        self._ours = os.path.join(root, "")
        self._written: dict[str, int] = {}
        self._thread = get_ident()

    def wrote(self, path: str) -> None:
        """The script writes `path`, live or in a replay, which may leave it out."""
        name = absolute(path)
        if name.startswith(self._ours):
            return
        self._written.pop(name, None)
        self._written[name] = get_ident()
        if len(self._written) > FILES:
            del self._written[next(iter(self._written))]

    def training_begins(self) -> None:
        """Called before the first forward or update: what was written before is really written in
        a replay, too."""
        self._written.clear()
        self._thread = get_ident()

    @property
    def names(self) -> Collection[str]:
        """All that were written, also those that are gone."""
        return self._written.keys()

    def present(self) -> dict[str, list[int]]:
        """Returns path → size and time of those that exist."""
        found = {}
        for name in list(self._written):
            with contextlib.suppress(OSError):
                looked = os.lstat(name)
                if stat.S_ISREG(looked.st_mode):
                    found[name] = [looked.st_size, looked.st_mtime_ns]
        return found

    def surplus(self, recorded: Mapping[str, list[int]]) -> list[str]:
        """Returns what this replay has written that did not exist in the recorded run."""
        if len(self._written) >= FILES:
            return []
        return [name for name in self.present() if name not in recorded]

    def is_by_itself(self, name: str) -> bool:
        """Whether the thread that trains wrote a file, which so was done with it."""
        return self._written.get(name) == self._thread

    def wrote_all(self, recorded: Mapping[str, list[int]]) -> bool:
        """Whether this replay came to write all that existed in the recorded run."""
        return recorded.keys() <= self._written.keys()


def is_as_recorded(path: str, recorded: list[int]) -> bool:
    """Whether a file is the one that was there at the checkpoint."""
    try:
        looked = os.lstat(path)
    except OSError:
        return False
    return [looked.st_size, looked.st_mtime_ns] == list(recorded)


_CLOCK_S = 0.05
"""The clock of file times is that much behind `time.time`, at most."""


class ReplayedFiles:
    """Keeps what lies on the disk, which is at least as new, from what a replay would write.

    What it writes into a file that exists goes to a nameless file, which becomes the file if it is
    still open at the target. What the script has made itself is put aside at the start (`hide`), so
    that it finds its folders as they were when it first ran.

    Args:
        aside: keeps the list of all this, for the next start if this one does not arrive.
        record: what the script has made and changed, and when.

    Attributes:
        interval: of the record, that began with the checkpoint; None in a live run.
        saved_at: when the checkpoint was written.
        in_place, nameless, written, whole: what was written in these ways.
        unseen: files of the script that others have written.
        created: paths that the replay itself has made.
        kept: paths that are newer than what the replay would have written there.
        again: paths that stand aside, and that the replay writes anew because it may read them.
        deleted: paths that the replay has put aside because the script deletes them.
        saved_in_memory: the replay has saved something of torch's to a stream that is no file.
    """

    def __init__(self, aside: SetAside, record: ScriptFiles) -> None:
        self.aside = aside
        self.record = record
        self.interval: int | None = None
        self.saved_at = math.inf
        self.in_place = ChangedInPlace(aside)
        self.unseen: list[str] = []
        self._to_fold: list[str] = []
        self.deleted: set[str] = set()
        self.nameless = NamelessFiles()
        self.written = WrittenFiles(aside)
        self.whole = WholeFiles(record.root)
        self.created: set[str] = set()
        self.kept: set[str] = set()
        self.again: set[str] = set()
        self._began = time.time() - _CLOCK_S
        self.saved_in_memory = False

    def training_begins(self) -> None:
        """Called before the first forward or update, live and in a replay."""
        self.written.training_begins()
        self.whole.training_begins()

    def hide(self, interval: int, saved_at: float) -> None:
        """Puts aside the files that the script has made; called before it starts again.

        Args:
            interval: of the record, that began with the checkpoint.
            saved_at: when the checkpoint was written, where the record does not know it.

        Raises:
            OSError: something could not be moved; the parent or the next start undo it.
        """
        began = self.record.began_at(interval)
        self.interval, self.saved_at = interval, saved_at if began is None else began
        self.record.is_replay = True
        self.unseen = self.record.unseen()
        room = COPIED_BYTES
        for path in self.unseen:
            with contextlib.suppress(FileNotFoundError):  # another rank has set it aside
                room -= os.path.getsize(path)
                if room >= 0:
                    self.in_place.keep(path, anew=False)
        files, self._to_fold = self.record.results()
        self.aside.move_all(files)
        self.record.databases.hide(self.aside)

    def fold(self) -> None:
        """Removes the folders that the script has made; called when all ranks have put their files
        aside."""
        for folder in sorted(self._to_fold, key=len, reverse=True):
            with contextlib.suppress(OSError):  # something else is in it
                for inner in os.scandir(folder):
                    if inner.is_dir(follow_symlinks=False) and not os.listdir(inner.path):
                        self.aside.fold(inner.path)  # a hidden one, which nobody has noted
                self.aside.fold(folder)

    def keeps(self, path: str | os.PathLike[str]) -> bool:
        """Asked before a whole file is written: whether to leave that out."""
        name = absolute(os.fspath(path))
        self._bring_back(name)
        if _has_content(name) and name not in self.created:
            self.kept.add(name)
            return True
        self._creates(name)
        return False

    def opened(self, path: str | os.PathLike[str], mode: str, open_: Callable[..., Any]) -> Any:
        """Opens a binary file for writing; None if the script's own call should."""
        name = absolute(os.fspath(path))
        if "x" in mode and os.path.lexists(name):
            return None
        if name in self.aside.stored and not os.path.lexists(name) and "+" not in mode:
            self._creates(name)  # the script may read it again; the target settles what it holds
            self.again.add(name)
            return None
        self._bring_back(name)
        if not _is_regular(name):
            if not os.path.exists(name):
                self._creates(name)
            return None
        if name in self.created or not _has_content(name):  # `mkstemp` made it
            self._creates(name)
            return None
        if "+" in mode:
            return self.in_place.opened(name, mode, open_)
        self.kept.add(name)
        return self.nameless.open(name, mode, open_)

    def opened_by_number(self, path: str, *, anew: bool, is_new: bool = False) -> None:
        """Called before `os.open` opens a file for writing; with `anew` what it holds goes, with
        `is_new` there must be none."""
        name = absolute(path)
        if self.record.leaves_out(name):
            return
        if is_new and name in self.aside.stored and not os.path.lexists(name):
            self._creates(name)
            self.again.add(name)
            return
        self._bring_back(name)
        if name in self.created or not _has_content(name):
            self._creates(name)
        elif _is_regular(name):
            self.in_place.keep(name, anew=anew)
            self.in_place.by_number |= {name} if anew else set()

    def renamed(self, source: str, target: str) -> bool:
        """Asked before a rename: whether to leave it out, because the newer `target` would go."""
        source, target = absolute(source), absolute(target)
        if os.path.isdir(source):
            return self._folder_renamed(source, target)
        is_new = source in self.created or (source not in self.kept and self.is_new(source))
        if not is_new and source not in self.kept:
            return False
        self._bring_back(target)
        is_own = target in self.aside.stored  # the recorded run's stands aside, so this is not it
        if not _is_regular(target) or target in self.created or is_own:
            self._creates(target)
            return False
        self.kept.add(target)
        if is_new:
            own_unlink(source)
        else:
            self.aside.move(source)
            self.kept.discard(source)
        return True

    def _folder_renamed(self, source: str, target: str) -> bool:
        """The files of a folder that gets another name: those that stand aside come back in it."""
        inner = [os.path.join(f, name) for f, _, names in os.walk(source) for name in names]
        for path in inner:
            there = target + path[len(source) :]
            if there in self.aside.stored and not os.path.lexists(there):
                own_unlink(path)
                os.rename(self.aside.stored.pop(there), path)
                self.kept.add(there)
            elif path in self.created or self.is_new(path):
                self._creates(there)
        return False

    def linked(self, source: str, target: str) -> bool:
        """Asked before a link: whether to leave it out, because `target` was only put aside."""
        source, target = absolute(source), absolute(target)
        self._bring_back(target)
        if target in self.kept:
            return True
        if source in self.created or source in self.kept:
            self._creates(target)
        return False

    def removed(self, path: str) -> bool:
        """Asked before a file is deleted: whether that was done, by putting it aside."""
        name = absolute(path)
        if name in self.created or not _is_regular(name) or self.is_new(name):
            return False
        if not self.aside.move(name):
            return False
        self.deleted.add(name)
        self.kept.discard(name)
        return True

    def cleared(self, path: str) -> bool:
        """Called before a whole folder is deleted: puts aside what was in it before the replay.

        What the replay made itself may go.
        """
        for folder, _, names in os.walk(absolute(path)):
            for name in (os.path.join(folder, each) for each in names):
                if not self.is_new(name):
                    self.removed(name)
        return False

    def folder_times(self) -> dict[str, int]:
        """When the script's folders were last changed, for a checkpoint."""
        return folder_times(self.record.folders())

    def _creates(self, name: str) -> None:
        if name not in self.created:
            self.aside.wrote(name)
            self.created.add(name)

    def _bring_back(self, name: str) -> None:
        if self.aside.bring_back(name):
            self.kept.add(name)

    def is_new(self, path: str) -> bool:
        """Whether the replay has made a file, by a way that was not seen."""
        try:
            return os.lstat(path).st_mtime >= self._began
        except OSError:
            return False


def _has_content(path: str) -> bool:
    return os.path.exists(path) and (not _is_regular(path) or os.path.getsize(path) > 0)


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


class NamelessFiles:
    """Stand in for files that exist; one that is still open at the target becomes the file."""

    def __init__(self) -> None:
        self._open: list[tuple[IO[bytes], str]] = []

    def open(self, name: str, mode: str, open_: Callable[..., Any]) -> Any:
        """Opens one in the folder of `name`, for which it stands."""
        file = open_(_nameless(os.path.dirname(name)), mode.replace("x", "w"))
        self._open.append((file, name))
        return file

    def still_open(self) -> set[str]:
        """Returns the names for which one is open."""
        self._open = [(file, name) for file, name in self._open if not file.closed]
        return {name for _, name in self._open}

    def become_files(self) -> None:
        """What was written so far becomes the file's, and the script's objects go on in it."""
        self.still_open()
        for file, name in self._open:
            file.flush()
            descriptor, position = file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_CUR)
            real = own_os_open(name, os.O_RDWR | os.O_TRUNC)
            with os.fdopen(os.dup(descriptor), "rb") as content, os.fdopen(os.dup(real), "wb") as f:
                content.seek(0)
                shutil.copyfileobj(content, f)
            os.lseek(real, position, os.SEEK_SET)
            os.dup2(real, descriptor, inheritable=False)
            os.close(real)


def _nameless(folder: str) -> int:
    try:
        return own_os_open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:  # not every file system can
        name = os.path.join(folder, f".{secrets.token_hex(8)}")
        descriptor = own_os_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        own_unlink(name)
        return descriptor
