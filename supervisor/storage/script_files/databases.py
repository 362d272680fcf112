"""Databases that the script opens: files that belong together, with locks of their process.

Nothing of them is read or exchanged while the script's process has one open: closing any other
descriptor of the file would drop the locks of SQLite, and its pages lie in memory. What a database
held before the script first opened it is kept. A replay begins with that, and the script's own
statements make of it what it was at the checkpoint; a transaction that a kill has left half done is
undone with all the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.file_lists import CompleteList, open_for_writing
from supervisor.storage.script_files.kept_versions import COPIED_BYTES, copy_private
from supervisor.storage.script_files.set_aside import SetAside

SQLITE = ("", "-journal", "-wal", "-shm")
"""What the names of one SQLite database end with; the last one is memory that its users share."""
DBM = ("", ".db", ".dat", ".dir", ".bak", ".pag")
"""The same for what `dbm` and `shelve` make."""
LMDB, LMDB_FOLDER = ("", "-lock"), ("/data.mdb", "/lock.mdb")
"""The same for LMDB: as a file, and as a folder."""
_SHARED_MEMORY = "-shm"


class Databases:
    """Those of one rank, in the order in which it has opened them.

    Args:
        rundir, rank: whose databases.
        tell: called once, with why the record is incomplete.
    """

    def __init__(
        self, rundir: RunDirectory, rank: int, tell: Callable[[str], None] = lambda problem: None
    ) -> None:
        self._folder = rundir.script_files / f"databases_{rank}"
        self._list = CompleteList(
            rundir.script_files / f"databases_{rank}.jsonl", self._all_lines, tell
        )
        self._known: dict[str, dict[str, str] | None] = {}
        self._parts: dict[str, str] = {}
        self._hidden: set[str] = set()
        for line in self._list.read():
            self._load(line)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, path: str) -> bool:
        """Whether a file belongs to one of them."""
        return path in self._parts

    def are_open(self) -> bool:
        """Whether this process has one open now."""
        in_use = set(open_for_writing())
        return any(os.path.realpath(part) in in_use for part in self._parts)

    def opens(self, path: str, endings: Sequence[str]) -> None:
        """Called before the script opens a database for writing; usually one look-up."""
        name = os.path.abspath(path)
        if name in self._known:
            return
        names = [name + ending for ending in endings]
        line = {"database": name, "parts": names, "kept": self._keep(names)}
        self._load(line)
        self._list.append(line)

    def hide(self, aside: SetAside) -> None:
        """A replay begins: the databases are what they were when the script first opened them.

        Raises:
            OSError: a file could not be moved; the parent or the next start undo all.
        """
        for name, kept in self._known.items():
            if kept is None:
                continue
            for part in self._parts_of(name):
                if os.path.lexists(part):
                    with contextlib.suppress(FileNotFoundError):  # another rank has moved it
                        aside.move(part)
                aside.wrote(part)
                if part in kept:
                    with contextlib.suppress(FileExistsError):  # another rank has copied it
                        copy_private(kept[part], part, os.stat(kept[part]))
                        os.utime(part)  # an undo knows by its time what the replay has written
            self._hidden.add(name)

    def made_again(self) -> set[str]:
        """Returns the files that the statements of a replay have made; their times are others."""
        parts = (path for path, name in self._parts.items() if name in self._hidden)
        return {path for path in parts if os.path.lexists(path)}

    def settle(self, path: str) -> bool | None:
        """Asked at the target for a part that stands aside.

        Returns:
            True where the replay has made the database again: this one is kept for a person. False
            where the part comes back, None where it is of no use.
        """
        if os.path.lexists(self._parts[path]):
            return True
        return None if path.endswith(_SHARED_MEMORY) else False

    def not_as_they_were(self, *, with_weights: bool) -> list[str]:
        """Returns those that a replay did not make again from their beginning.

        Args:
            with_weights: it has put weights into memory: untrained ones, perhaps in a database.
        """
        return [
            name
            for name in self._known
            if name not in self._hidden
            or with_weights
            or (not os.path.lexists(name) and self._has_plain(name))
        ]

    def forget(self) -> None:
        """The training begins anew, with what the databases hold now."""
        if self._known:
            self._known, self._parts = {}, {}
            self._list.rewrite()

    def _has_plain(self, name: str) -> bool:
        """Whether the name itself is a file of the database's, as SQLite's."""
        return name + _SHARED_MEMORY in self._parts

    def _keep(self, names: Sequence[str]) -> dict[str, str] | None:
        """Copies what there is of a database that this process has not opened yet; None where that
        would take too long."""
        there = [name for name in names if os.path.isfile(name)]
        try:
            if sum(map(os.path.getsize, there)) > COPIED_BYTES:
                return None
            kept: dict[str, str] = {}
            for name in there:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                place = str(self._folder / str(len(self._parts) + len(kept)))
                Path(place).unlink(missing_ok=True)
                copy_private(name, place, os.stat(name))
                kept[name] = place
        except OSError:
            return None
        return kept

    def _load(self, line: dict[str, Any]) -> None:
        name, parts, kept = line.get("database"), line.get("parts"), line.get("kept")
        if isinstance(name, str) and isinstance(parts, list):
            self._known[name] = kept if isinstance(kept, dict) else None
            self._parts.update(dict.fromkeys(map(str, parts), name))

    def _all_lines(self) -> list[dict[str, Any]]:
        return [
            {"database": name, "parts": self._parts_of(name), "kept": kept}
            for name, kept in self._known.items()
        ]

    def _parts_of(self, name: str) -> list[str]:
        return [part for part, of in self._parts.items() if of == name]
