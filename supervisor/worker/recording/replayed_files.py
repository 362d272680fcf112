"""Files that a fast-forward must not write: their content would be that of an untrained model."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from supervisor.storage.run.files_at_target import FilesAtTarget
from supervisor.storage.run.folder_times import folder_times, put_back_folder_times
from supervisor.storage.run.kept_versions import COPIED_BYTES, Change, copy_private
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.run.set_aside import SetAside, remove
from supervisor.storage.run.unseen_files import open_for_writing
from supervisor.worker.recording.changed_in_place import ChangedInPlace
from supervisor.worker.recording.nameless_files import NamelessFiles
from supervisor.worker.recording.other_names import OtherNames
from supervisor.worker.recording.whole_files import WholeFiles, is_as_recorded
from supervisor.worker.recording.written_files import WrittenFiles

_unlink, _link, _os_open = os.unlink, os.link, os.open  # before they are patched
_SQLITE = b"SQLite format 3\0"

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
        saved_in_memory: the replay has saved something of torch's to a stream that is no file.
    """

    def __init__(self, aside: SetAside, record: ScriptFiles) -> None:
        self._aside = aside
        self._record = record
        self._interval: int | None = None
        self._saved_at = math.inf
        self._in_place = ChangedInPlace(aside)
        self._unseen: list[str] = []
        self._to_fold: list[str] = []
        self._deleted: set[str] = set()
        self._nameless = NamelessFiles()
        self.written = WrittenFiles(aside)
        self.whole = WholeFiles(record.root)
        self._created: set[str] = set()
        self._kept: set[str] = set()
        self._again: set[str] = set()
        self._began = time.time() - _CLOCK_S
        self._names = OtherNames(())
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
        began = self._record.began_at(interval)
        self._interval, self._saved_at = interval, saved_at if began is None else began
        self._record.is_replay = True
        self._unseen = self._record.unseen()
        room = COPIED_BYTES
        for path in self._unseen:
            with contextlib.suppress(FileNotFoundError):  # another rank has set it aside
                room -= os.path.getsize(path)
                if room >= 0:
                    self._in_place.keep(path, anew=False)
        files, self._to_fold = self._record.results()
        self._aside.move_all(files)

    def fold(self) -> None:
        """Removes the folders that the script has made; called when all ranks have put their files
        aside."""
        for folder in sorted(self._to_fold, key=len, reverse=True):
            with contextlib.suppress(OSError):  # something else is in it
                self._aside.fold(folder)

    def keeps(self, path: str | os.PathLike[str]) -> bool:
        """Asked before a whole file is written: whether to leave that out."""
        name = os.path.abspath(os.fspath(path))
        self._bring_back(name)
        if _has_content(name) and name not in self._created:
            self._kept.add(name)
            return True
        self._creates(name)
        return False

    def opened(self, path: str | os.PathLike[str], mode: str, open_: Callable[..., Any]) -> Any:
        """Opens a binary file for writing; None if the script's own call should."""
        name = os.path.abspath(os.fspath(path))
        if "x" in mode and os.path.lexists(name):
            return None
        if name in self._aside.stored and not os.path.lexists(name) and "+" not in mode:
            self._creates(name)  # the script may read it again; the target settles what it holds
            self._again.add(name)
            return None
        self._bring_back(name)
        if not _is_regular(name):
            if not os.path.exists(name):
                self._creates(name)
            return None
        if name in self._created or not _has_content(name):  # `mkstemp` made it
            self._creates(name)
            return None
        if "+" in mode:
            return self._in_place.opened(name, mode, open_)
        self._kept.add(name)
        return self._nameless.open(name, mode, open_)

    def opened_by_number(self, path: str, *, anew: bool, is_new: bool = False) -> None:
        """Called before `os.open` opens a file for writing; with `anew` what it holds goes, with
        `is_new` there must be none."""
        name = os.path.abspath(path)
        if self._record.leaves_out(name):
            return
        if is_new and name in self._aside.stored and not os.path.lexists(name):
            self._creates(name)
            self._again.add(name)
            return
        self._bring_back(name)
        if name in self._created or not _has_content(name):
            self._creates(name)
        elif _is_regular(name):
            self._in_place.keep(name, anew=anew)

    def renamed(self, source: str, target: str) -> bool:
        """Asked before a rename: whether to leave it out, because the newer `target` would go."""
        source, target = os.path.abspath(source), os.path.abspath(target)
        if os.path.isdir(source):
            return self._folder_renamed(source, target)
        is_new = source in self._created or (source not in self._kept and self._is_new(source))
        if not is_new and source not in self._kept:
            return False
        self._bring_back(target)
        is_own = target in self._aside.stored  # the recorded run's stands aside, so this is not it
        if not _is_regular(target) or target in self._created or is_own:
            self._creates(target)
            return False
        self._kept.add(target)
        if is_new:
            _unlink(source)
        else:
            self._aside.move(source)
            self._kept.discard(source)
        return True

    def _folder_renamed(self, source: str, target: str) -> bool:
        """The files of a folder that gets another name: those that stand aside come back in it."""
        inner = [os.path.join(f, name) for f, _, names in os.walk(source) for name in names]
        for path in inner:
            there = target + path[len(source) :]
            if there in self._aside.stored and not os.path.lexists(there):
                _unlink(path)
                os.rename(self._aside.stored.pop(there), path)
                self._kept.add(there)
            elif path in self._created or self._is_new(path):
                self._creates(there)
        return False

    def linked(self, source: str, target: str) -> bool:
        """Asked before a link: whether to leave it out, because `target` was only put aside."""
        source, target = os.path.abspath(source), os.path.abspath(target)
        self._bring_back(target)
        if target in self._kept:
            return True
        if source in self._created or source in self._kept:
            self._creates(target)
        return False

    def removed(self, path: str) -> bool:
        """Asked before a file is deleted: whether that was done, by putting it aside."""
        name = os.path.abspath(path)
        if name in self._created or not _is_regular(name) or self._is_new(name):
            return False
        if not self._aside.move(name):
            return False
        self._deleted.add(name)
        self._kept.discard(name)
        return True

    def cleared(self, path: str) -> bool:
        """Called before a whole folder is deleted: puts aside what was in it before the replay.

        What the replay made itself may go.
        """
        for folder, _, names in os.walk(os.path.abspath(path)):
            for name in (os.path.join(folder, each) for each in names):
                if not self._is_new(name):
                    self.removed(name)
        return False

    def kept(self) -> dict[str, str]:
        """Returns path → where the content at the checkpoint is kept, of files changed since."""
        if self._interval is None:
            return {}
        changed = self._record.changed_since(self._interval)
        return {path: change.kept for path, change in changed.items() if change.kept}

    def take_names(self, texts: Iterable[tuple[str, str]]) -> OtherNames:
        """The target is reached, and it is known what differs by nature: from here on the files of
        the recorded run have the names of this one.

        Args:
            texts: those of the script, as they were in the recorded run and as they are.

        Returns:
            The names for what the checkpoint knows of files.
        """
        own = {*self.whole.names, *self.written.names}
        pairs = list(texts)
        names = OtherNames(((self._record.texts.get(old, old), new) for old, new in pairs), own)
        if names:
            self._aside.take_names(names.keys)
            self._record.take_names(names.keys, dict(pairs))
        self._names = OtherNames(pairs, own)
        return self._names

    def restore_in_place(self) -> None:
        """The target is reached, and the state not yet put back: arrays may be mapped files.

        Raises:
            OSError: a file could not be written.
        """
        changed = {}
        if self._interval is not None:
            changed = self._record.changed_since(self._interval)
        self._in_place.restore(changed, self._saved_at)

    def end(
        self,
        aside_name: str = "later",
        mapped: Collection[str] = (),
        settled: Collection[str] = (),
        recorded: Mapping[str, list[int]] | None = None,
    ) -> FilesAtTarget:
        """The target is reached: the script's files become what they were at the checkpoint.

        Files that are still open get their names; what the script replaced or deleted since comes
        back, as far as it was kept; what it made since stays aside.

        Args:
            aside_name: of the folder for the latter.
            mapped: files that arrays map which the checkpoint holds: they are as they were.
            settled: others that are known to be as they were.
            recorded: files written as a whole, by the names of the recorded run, of which size and
                time are known; None if they are not known.

        Raises:
            OSError: a file could not be moved.
        """
        self._nameless.become_files()
        restored, not_restored = self._restore(settled)
        later: list[str] = list(restored & self._aside.stored.keys())
        known = {*settled, *mapped, *self._nameless.still_open()}
        self._copy_from_other_names(recorded or {})
        whole = self._names.keys(recorded or {})
        self._bring_recorded_back(whole, known)
        surplus = [] if recorded is None else self._remove_surplus(whole)
        surplus += self._written_by_others(known)
        done = self._settle_aside(later, restored, mapped, settled)
        for folder, mode in sorted(self._aside.folded.items()):
            if not self._is_later(folder) and not os.path.isdir(folder):
                os.makedirs(folder, mode & 0o777)
        left = self._aside.arrived()
        for path in done:
            remove(left[path])
        kept_in = self._aside.keep_for_a_person(later, left, aside_name) if later else ""
        not_restored += self._in_place.lost.difference(mapped, self._unseen)
        unknown = ""
        if self._interval is not None:
            unknown = self._record.problem_at(self._interval)
            self._record.continue_at(self._interval, set(later) - restored)
        lost = self._not_as_recorded(whole, known)
        not_restored = sorted({*not_restored, *surplus, *lost})
        return FilesAtTarget(sorted(later), str(kept_in), not_restored, unknown, self._unseen)

    def folder_times(self) -> dict[str, int]:
        """When the script's folders were last changed, for a checkpoint."""
        return folder_times(self._record.folders())

    def put_back_folder_times(self, recorded: Mapping[str, int]) -> None:
        """Called when all ranks have arrived.

        Args:
            recorded: by the names of the recorded run.
        """
        put_back_folder_times(self._names.keys(dict(recorded)))

    def _settle_aside(
        self,
        later: list[str],
        restored: Collection[str],
        mapped: Collection[str],
        settled: Collection[str],
    ) -> list[str]:
        """Brings back what stands aside and was there at the checkpoint.

        Args:
            later: what was made behind it is added.
            restored: files that have come back already.
            mapped, settled: see `end`.

        Returns:
            What stands aside and is of no use any more.
        """
        done: list[str] = []
        for path in list(self._aside.stored):
            if path in restored:
                continue
            if path in self._in_place or path in mapped:
                done.append(path)
            elif path in self._again and path not in settled and not self._is_later(path):
                _unlink(path)
                self._aside.bring_back(path)
            elif os.path.lexists(path):  # written again by the replay, with the same content
                made = self._record.was_made_since(path, self._interval or 0)
                seen = path in self._deleted or made is not None
                (done if seen else later).append(path)
            elif self._is_later(path):
                later.append(path)
            elif path in self._deleted:
                done.append(path)
            else:
                self._aside.bring_back(path)
        return done

    def _copy_from_other_names(self, recorded: Mapping[str, list[int]]) -> None:
        """A temporary file is in no record, so the killed attempt's is still there."""
        for old, then in recorded.items():
            path = self._names.of(old)
            if path != old and path not in self._aside.stored and is_as_recorded(old, then):
                with contextlib.suppress(OSError):
                    if os.path.lexists(path):
                        _unlink(path)
                    copy_private(old, path, os.lstat(old))

    def _bring_recorded_back(
        self, recorded: Mapping[str, list[int]], known: Collection[str]
    ) -> None:
        """Files that the replay has deleted or written otherwise, and that stand aside."""
        for path in self._not_as_recorded(recorded, known):
            to = self._aside.stored.get(path)
            if to is not None and is_as_recorded(to, recorded[path]):
                if os.path.lexists(path):
                    _unlink(path)
                self._aside.bring_back(path)

    def _remove_surplus(self, recorded: Mapping[str, list[int]]) -> list[str]:
        """Deletes files that the recorded run did not have; returns those that must stay.

        Those of other threads may be early. Where the replay has not written what the recorded run
        had, they may be the same files by other names.
        """
        stay = []
        for path in self.whole.surplus(recorded):
            if not (self.whole.is_by_itself(path) and self.whole.wrote_all(recorded)):
                stay.append(path)
            elif path not in self._kept or not self._aside.move(path):
                _unlink(path)
        return stay

    def _written_by_others(self, known: Collection[str]) -> list[str]:
        """What another program, or a library in C, has written for the replay: that of the recorded
        run comes back. Returns what it had not, or not any more.

        A database is written by what the script says, which is what it said then; but a model that
        it has saved into memory is an untrained one.
        """
        seen = {*self._record.replayed, *self._created, *self._kept, *self._again, *known}
        seen.update(open_for_writing())
        lost = []
        for path in self._record.results()[0]:
            if not self._is_new(path):
                continue
            if _is_database(path):
                lost += [path] * self.saved_in_memory
                continue
            if path in seen or path in self._in_place:
                continue
            if path in self._aside.stored and not self._is_later(path):
                _unlink(path)
                self._aside.bring_back(path)
            else:
                lost.append(path)
        return lost

    def _not_as_recorded(
        self, recorded: Mapping[str, list[int]], known: Collection[str]
    ) -> list[str]:
        return [
            path
            for path, then in recorded.items()
            if path not in known and path not in self._in_place and not is_as_recorded(path, then)
        ]

    def _restore(self, settled: Collection[str]) -> tuple[set[str], list[str]]:
        """Puts back what was kept; returns those paths, and what was not kept."""
        if self._interval is None:
            return set(), []
        restored, lost = set(), []
        is_open = self._nameless.still_open()
        for path, change in self._record.changed_since(self._interval).items():
            if path in is_open or path in self._in_place or path in settled:
                continue
            if path not in self._again and self._is_as_before(path, change):
                continue
            if not (change.kept and os.path.lexists(change.kept)):
                lost.append(path)
                continue
            if os.path.lexists(path) and not self._aside.move(path):
                _unlink(path)  # made by the replay: the newer one stands aside already
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _link(change.kept, path, follow_symlinks=False)
            restored.add(path)
        return restored, lost

    def _is_as_before(self, path: str, change: Change) -> bool:
        """Whether the file on the disk, in place or aside, is the one that was there."""
        place = path if os.path.lexists(path) else self._aside.stored.get(path, path)
        try:
            found = os.lstat(place)
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (change.size, change.mtime_ns)

    def _is_later(self, path: str) -> bool:
        """Whether what stands aside was made after the checkpoint."""
        if self._interval is None:
            return False
        known = self._record.was_made_since(path, self._interval)
        if known is None and path in self._aside.stored:  # by its age, if nobody saw who made it
            return os.lstat(self._aside.stored[path]).st_mtime > self._saved_at
        return bool(known)

    def _creates(self, name: str) -> None:
        if name not in self._created:
            self._aside.wrote(name)
            self._created.add(name)

    def _bring_back(self, name: str) -> None:
        if self._aside.bring_back(name):
            self._kept.add(name)

    def _is_new(self, path: str) -> bool:
        """Whether the replay has made a file, by a way that was not seen."""
        try:
            return os.lstat(path).st_mtime >= self._began
        except OSError:
            return False


def _is_database(path: str) -> bool:
    try:
        descriptor = _os_open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.read(descriptor, len(_SQLITE)) == _SQLITE
    finally:
        os.close(descriptor)


def _has_content(path: str) -> bool:
    return os.path.exists(path) and (not _is_regular(path) or os.path.getsize(path) > 0)


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
