"""The case library: every crash with its signature, treatment and outcome.

It belongs to the user, not to a run: what worked in one run is tried first in the next. It never
leaves the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.errors import SupervisorError
from supervisor.records import plain
from supervisor.storage.cases.case_advisor import OUTCOMES, Case
from supervisor.storage.files.private_files import make_private

_PATIENCE_S = 30.0
"""Time for which a run waits while another one writes."""
_COLUMNS = "time, run, cause, signature, treatment, outcome, script"


class CaseLibrary:
    """Cases in an SQLite file (mode 0600) that several runs may use at once.

    Args:
        path: the file; None takes `default_path`.

    Raises (all methods): `SupervisorError` when the file cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self._patience_s = _PATIENCE_S

    def add(self, case: Case) -> int:
        """Files a case and returns its new id.

        Raises:
            ValueError: the outcome is not one of `OUTCOMES`.
        """
        if case.outcome not in OUTCOMES:
            raise ValueError(f"{case.outcome!r} is not an outcome; known: {', '.join(OUTCOMES)}")
        row = (
            case.time,
            case.run,
            case.cause,
            json.dumps(plain(case.signature), sort_keys=True),
            case.treatment,
            case.outcome,
            case.script,
        )
        with self._open() as database:
            cursor = database.execute(
                f"INSERT INTO cases ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row
            )
            return int(cursor.lastrowid or 0)

    def all(self) -> list[Case]:
        """Returns every case, the oldest first."""
        return self._select("ORDER BY id")

    def newest(self, count: int, patience_s: float = 1.0) -> list[Case]:
        """Returns at most `count` of the newest cases, oldest first; never creates the file.

        Args:
            count: how many.
            patience_s: how long to wait while another run writes.
        """
        if not self.path.exists():
            return []
        self._patience_s = patience_s
        try:
            return self._select("ORDER BY id DESC LIMIT ?", count)[::-1]
        finally:
            self._patience_s = _PATIENCE_S

    def _select(self, condition: str, *values: Any) -> list[Case]:
        with self._open() as database:
            rows = database.execute(f"SELECT id, {_COLUMNS} FROM cases {condition}", values)
            return [_to_case(row) for row in rows]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            make_private(self.path.parent)
            # SQLite would make it readable by everyone; its journal inherits the file's mode.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(
                self.path, timeout=self._patience_s, isolation_level="IMMEDIATE"
            )
            with contextlib.closing(connection) as database, database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS cases (id INTEGER PRIMARY KEY, time REAL, "
                    "run TEXT, cause TEXT, signature TEXT, treatment TEXT, outcome TEXT, "
                    "script TEXT)"
                )
                yield database
        except (OSError, sqlite3.Error) as error:
            raise SupervisorError(
                f"{self.path}: the case library cannot be used ({error}): "
                "move the file away, or set SUPERVISOR_CASES to another one"
            ) from error


def default_path() -> Path:
    """Returns ``$SUPERVISOR_CASES``, or ``~/.local/share/training-supervisor/cases.sqlite``.

    Raises:
        SupervisorError: there is no home directory.
    """
    chosen = os.environ.get("SUPERVISOR_CASES")
    if chosen:
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError as error:
        raise SupervisorError(
            f"case library: {error}: set SUPERVISOR_CASES to a file of your own"
        ) from error
    return home / ".local" / "share" / "training-supervisor" / "cases.sqlite"


def _to_case(row: tuple[Any, ...]) -> Case:
    try:
        signature = json.loads(row[4])
    except (ValueError, TypeError):
        signature = {}
    return Case(
        id=row[0],
        time=row[1],
        run=row[2],
        cause=row[3],
        signature=signature if isinstance(signature, dict) else {},
        treatment=row[5],
        outcome=row[6],
        script=row[7],
    )
