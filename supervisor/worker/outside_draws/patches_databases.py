"""The patches by which it is seen that the script opens a database, before it does."""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from supervisor.storage.script_files.databases import DBM, SQLITE, Databases
from supervisor.worker.core.interception_state import InterceptionState


def watch_databases(
    interception: InterceptionState, databases: Databases, failed: Callable[[Exception], None]
) -> None:
    """Patches for the rest of this process's life. Called once, after `instrument`.

    Args:
        failed: called with an error of ours.
    """

    def watch(
        module: Any, name: str, path_of: Callable[..., str | None], endings: Sequence[str]
    ) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def opened(*args: Any, **kwargs: Any) -> Any:
            if interception.active:
                try:
                    path = path_of(*args, **kwargs)
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
        watch(sqlite3, "connect", _of_sqlite, SQLITE)
        sqlite3.dbapi2.connect = sqlite3.connect
    import dbm

    watch(dbm, "open", _of_dbm, DBM)


def _of_sqlite(database: Any, *_: Any, uri: bool = False, **__: Any) -> str | None:
    """The file; None for one in memory, or one that is only read."""
    name = os.fsdecode(database)
    if name.startswith("file:") and (uri or len(_) > 6):
        parsed = urllib.parse.urlsplit(name)
        asked = urllib.parse.parse_qs(parsed.query)
        if {"ro", "memory"} & {*asked.get("mode", ()), *("ro" for _ in asked.get("immutable", ()))}:
            return None
        name = urllib.parse.unquote(parsed.path)
    return None if name in ("", ":memory:") else name


def _of_dbm(file: Any, flag: str = "r", *_: Any, **__: Any) -> str | None:
    return None if flag == "r" else os.fsdecode(file)
