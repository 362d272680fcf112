"""The library's cases into the run, where its workers find them (`CaseMemory`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from supervisor.errors import SupervisorError
from supervisor.storage.cases.case import Case
from supervisor.storage.cases.case_memory import MAX_CASES
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.files.private_files import write_json
from supervisor.storage.run.rundir import RunDirectory


def keep_memory(rundir: RunDirectory) -> str | None:
    """Writes what the library knows now into the run; returns why that failed, None if it did not.

    A missing library is an empty one; a locked or damaged one, too, after a second. Called by the
    parent alone: workers do without SQLite, which takes 40 ms to import.
    """
    try:
        cases: Sequence[Case] = CaseLibrary().newest(MAX_CASES)
        problem = None
    except SupervisorError as error:
        cases, problem = (), str(error)
    try:
        write_json(rundir.cases, [dataclasses.asdict(case) for case in cases])
    except OSError as error:
        return f"{rundir.cases}: {error.strerror or error}"
    return problem
