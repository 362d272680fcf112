"""The patches by which it is seen that the script opens a database, before it does."""

from __future__ import annotations

import functools
import os
import sys
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from supervisor.storage.script_files.databases import (
    DBM,
    LMDB,
    LMDB_FOLDER,
    SQLITE,
    Databases,
)
from supervisor.storage.script_files.kept_versions import COPIED_BYTES
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.module_arrival import ModuleArrival

_Found = tuple[str | None, Sequence[str]]
"""The path of a database, and what the names of its files end with."""


def watch_databases(
    call_state: CallState, databases: Databases, failed: Callable[[Exception], None]
) -> None:
    """Patches for the rest of this process's life. Called once, after `instrument`.

    Args:
        failed: called with an error of ours.
    """

    def watch(module: Any, name: str, of: Callable[..., _Found]) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def opened(*args: Any, **kwargs: Any) -> Any:
            if call_state.active:
                try:
                    path, endings = of(*args, **kwargs)
                    if path is not None:
                        databases.opens(path, endings)
                except Exception as error:  # of ours: the script's own call stands
                    failed(error)
            return original(*args, **kwargs)

        setattr(module, name, opened)

    try:
        import sqlite3
    except ImportError:  # a Python that was built without it
        pass
    else:
        watch(sqlite3, "connect", _of_sqlite)
        sqlite3.dbapi2.connect = sqlite3.connect
    import dbm

    watch(dbm, "open", _of_dbm)
    ModuleArrival("lmdb", lambda: watch(sys.modules["lmdb"], "open", _of_lmdb)).install()


def _of_sqlite(database: Any, *_: Any, uri: bool = False, **__: Any) -> _Found:
    """None for one in memory, or one that is only read."""
    name = os.fsdecode(database)
    if name.startswith("file:") and (uri or len(_) > 6):
        parsed = urllib.parse.urlsplit(name)
        asked = urllib.parse.parse_qs(parsed.query)
        if {"ro", "memory"} & {*asked.get("mode", ()), *("ro" for _ in asked.get("immutable", ()))}:
            return None, ()
        name = urllib.parse.unquote(parsed.path)
    return None if name in ("", ":memory:") else name, SQLITE


def _of_dbm(file: Any, flag: str = "r", *_: Any, **__: Any) -> _Found:
    return None if flag == "r" else os.fsdecode(file), DBM


def _of_lmdb(
    path: Any, map_size: int = 0, subdir: bool = True, readonly: bool = False, *_: Any, **__: Any
) -> _Found:
    """None for a large one, too: a data set, which is usually opened for writing and only read."""
    name, endings = os.fsdecode(path), LMDB_FOLDER if subdir else LMDB
    data = name + endings[0]
    is_large = os.path.exists(data) and os.path.getsize(data) > COPIED_BYTES
    return None if readonly or is_large else name, endings
