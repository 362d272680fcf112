"""What the script's files become when a replay has reached its target.

Files that are called otherwise in each process: of a time, a process, a temporary folder. The
script's own files, in a live run, at a save, in a replay and where it arrives.

Threads of executors that still work when a replay arrives: what they save is that of the replay.

A replay is faster than the training was, so an asynchronous save (`dcp.async_save`, an executor of
the script) may still be under way at the target. It would write an untrained model over files that
have just come back.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from supervisor.storage.files.private_files import own_link, own_os_open, own_unlink
from supervisor.storage.script_files.file_lists import open_for_writing
from supervisor.storage.script_files.files_at_target import FilesAtTarget, put_back_folder_times
from supervisor.storage.script_files.kept_versions import Change, copy_private
from supervisor.storage.script_files.set_aside import remove
from supervisor.worker.files.replayed_files import ReplayedFiles, is_as_recorded

_V = TypeVar("_V")


class OtherNames:
    """Says what a file of the recorded run is called in this one.

    Args:
        texts: those of the script that differ by nature, as they were and as they are.
        own: files that this process writes under the names of the recorded run.
    """

    def __init__(self, texts: Iterable[tuple[str, str]], own: Collection[str] = ()) -> None:
        self._texts = sorted(set(texts), key=lambda pair: len(pair[0]), reverse=True)
        self._own = own

    def of(self, path: str) -> str:
        """Returns a file's or folder's path in this process; the same where it is none other."""
        if path in self._own:
            return path
        other = path
        for old, new in self._texts:
            if old.isdigit():  # of a process: 1234 is no part of 12345
                other = new.join(re.split(rf"(?<!\d){old}(?!\d)", other))
            else:
                other = other.replace(old, new)
        return other if os.path.isdir(os.path.dirname(other)) else path

    def keys(self, recorded: Mapping[str, _V]) -> dict[str, _V]:
        """Returns the same by the names of this process; what the recorded run noted of a file
        counts for more than what this one did."""
        found: dict[str, _V] = {}
        for path, value in recorded.items():
            other = self.of(path)
            if other != path or path not in found:
                found[other] = value
        return found

    def __bool__(self) -> bool:
        return bool(self._texts)


_SQLITE = b"SQLite format 3\0"


class FilesAtArrival:
    """Makes the script's files what they were at the checkpoint; called once, in an arrival.

    Args:
        replayed: what the replay has done with them.
    """

    def __init__(self, replayed: ReplayedFiles) -> None:
        self._replay = replayed
        self._aside, self._record = replayed.aside, replayed.record
        self._names = OtherNames(())

    def kept_contents(self) -> dict[str, str]:
        """Returns path → where the content at the checkpoint is kept, of files changed since."""
        if self._replay.interval is None:
            return {}
        changed = self._record.changed_since(self._replay.interval)
        return {path: change.kept for path, change in changed.items() if change.kept}

    def take_names(self, texts: Iterable[tuple[str, str]]) -> OtherNames:
        """The target is reached, and it is known what differs by nature: from here on the files of
        the recorded run have the names of this one.

        Args:
            texts: those of the script, as they were in the recorded run and as they are.

        Returns:
            The names for what the checkpoint knows of files.
        """
        own = {*self._replay.whole.names, *self._replay.written.names}
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
        if self._replay.interval is not None:
            changed = self._record.changed_since(self._replay.interval)
        self._replay.in_place.restore(changed, self._replay.saved_at)

    def settle(
        self,
        aside_name: str = "later",
        mapped: Collection[str] = (),
        as_before: Collection[str] = (),
        recorded: Mapping[str, list[int]] | None = None,
    ) -> FilesAtTarget:
        """The target is reached: the script's files become what they were at the checkpoint.

        Files that are still open get their names; what the script replaced or deleted since comes
        back, as far as it was kept; what it made since stays aside.

        Args:
            aside_name: of the folder for the latter.
            mapped: files that arrays map which the checkpoint holds: they are as they were.
            as_before: others that are known to be as they were.
            recorded: files written as a whole, by the names of the recorded run, of which size and
                time are known; None if they are not known.

        Raises:
            OSError: a file could not be moved.
        """
        self._replay.nameless.become_files()
        restored, not_restored = self._restore(as_before)
        later: list[str] = list(restored & self._aside.stored.keys())
        known = {*as_before, *mapped, *self._replay.nameless.still_open()}
        known |= self._record.databases.made_again()
        self._copy_from_other_names(recorded or {})
        whole = self._names.keys(recorded or {})
        self._bring_recorded_back(whole, known)
        surplus = [] if recorded is None else self._remove_surplus(whole)
        surplus += self._written_by_others(known)
        done = self._settle_aside(later, restored, mapped, as_before)
        for folder, mode in sorted(self._aside.folded.items()):
            if not self._is_later(folder) and not os.path.isdir(folder):
                os.makedirs(folder, mode & 0o777)
        left = self._aside.arrived()
        for path in done:
            remove(left[path])
        kept_in = self._aside.keep_for_a_person(later, left, aside_name) if later else ""
        not_restored += self._replay.in_place.lost.difference(mapped, self._replay.unseen)
        unknown = ""
        if self._replay.interval is not None:
            unknown = self._record.problem_at(self._replay.interval)
            self._record.continue_at(self._replay.interval, set(later) - restored)
        lost = self._not_as_recorded(whole, known)
        others = self._record.databases.not_as_they_were(with_weights=self._replay.saved_in_memory)
        not_restored = sorted({*not_restored, *surplus, *lost, *others})
        return FilesAtTarget(
            sorted(later), str(kept_in), not_restored, unknown, self._replay.unseen
        )

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
        as_before: Collection[str],
    ) -> list[str]:
        """Brings back what stands aside and was there at the checkpoint.

        Args:
            later: what was made behind it is added.
            restored: files that have come back already.
            mapped, as_before: see `settle`.

        Returns:
            What stands aside and is of no use any more.
        """
        done: list[str] = []
        databases = self._record.databases
        for path in list(self._aside.stored):
            if path in restored:
                continue
            if path in databases:
                if (again := databases.settle(path)) is False:
                    self._aside.bring_back(path)
                else:
                    (later if again else done).append(path)
            elif path in self._replay.in_place or path in mapped:
                done.append(path)
            elif path in self._replay.again and path not in as_before and not self._is_later(path):
                own_unlink(path)
                self._aside.bring_back(path)
            elif os.path.lexists(path):  # written again by the replay, with the same content
                made = self._record.was_made_since(path, self._replay.interval or 0)
                seen = path in self._replay.deleted or made is not None
                (done if seen else later).append(path)
            elif self._is_later(path):
                later.append(path)
            elif path in self._replay.deleted:
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
                        own_unlink(path)
                    copy_private(old, path, os.lstat(old))

    def _bring_recorded_back(
        self, recorded: Mapping[str, list[int]], known: Collection[str]
    ) -> None:
        """Files that the replay has deleted or written otherwise, and that stand aside."""
        for path in self._not_as_recorded(recorded, known):
            to = self._aside.stored.get(path)
            if to is not None and is_as_recorded(to, recorded[path]):
                if os.path.lexists(path):
                    own_unlink(path)
                self._aside.bring_back(path)

    def _remove_surplus(self, recorded: Mapping[str, list[int]]) -> list[str]:
        """Deletes files that the recorded run did not have; returns those that must stay.

        Those of other threads may be early. Where the replay has not written what the recorded run
        had, they may be the same files by other names.
        """
        stay, whole = [], self._replay.whole
        for path in whole.surplus(recorded):
            if not (
                self._replay.whole.is_by_itself(path) and self._replay.whole.wrote_all(recorded)
            ):
                stay.append(path)
            elif path not in self._replay.kept or not self._aside.move(path):
                own_unlink(path)
        return stay

    def _written_by_others(self, known: Collection[str]) -> list[str]:
        """What another program, or a library in C, has written for the replay: that of the recorded
        run comes back. Returns what it had not, or not any more.

        A database is written by what the script says, which is what it said then; but a model that
        it has saved into memory is an untrained one.
        """
        seen = {
            *self._record.replayed,
            *self._replay.created,
            *self._replay.kept,
            *self._replay.again,
            *known,
        }
        seen.update(open_for_writing())
        lost = []
        for path in self._record.results()[0]:
            if not self._replay.is_new(path):
                continue
            if _is_database(path):
                lost += [path] * self._replay.saved_in_memory
                continue
            if path in seen or path in self._replay.in_place:
                continue
            if path in self._aside.stored and not self._is_later(path):
                own_unlink(path)
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
            if path not in known
            and path not in self._replay.in_place
            and not is_as_recorded(path, then)
        ]

    def _restore(self, as_before: Collection[str]) -> tuple[set[str], list[str]]:
        """Puts back what was kept; returns those paths, and what was not kept."""
        if self._replay.interval is None:
            return set(), []
        restored, lost = set(), []
        is_open = self._replay.nameless.still_open()
        for path, change in self._record.changed_since(self._replay.interval).items():
            if path in is_open or path in self._replay.in_place or path in as_before:
                continue
            if path not in self._replay.again and self._is_as_before(path, change):
                continue
            if not (change.kept and os.path.lexists(change.kept)):
                lost.append(path)
                continue
            if os.path.lexists(path) and not self._aside.move(path):
                own_unlink(path)  # made by the replay: the newer one stands aside already
            os.makedirs(os.path.dirname(path), exist_ok=True)
            own_link(change.kept, path, follow_symlinks=False)
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
        if self._replay.interval is None:
            return False
        known = self._record.was_made_since(path, self._replay.interval)
        if known is None and path in self._aside.stored:  # by its age, if nobody saw who made it
            return os.lstat(self._aside.stored[path]).st_mtime > self._replay.saved_at
        return bool(known)


def _is_database(path: str) -> bool:
    if not os.path.isfile(path):  # a link to a folder, such as `latest`
        return False
    try:
        descriptor = own_os_open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.read(descriptor, len(_SQLITE)) == _SQLITE
    finally:
        os.close(descriptor)
