"""Copies the library's cases into the run directory, for its workers (`CaseMemory`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from supervisor.errors import SupervisorError
from supervisor.storage.cases.case import Case
from supervisor.storage.cases.case_advisor import MAX_CASES
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.files.private_files import write_json
from supervisor.storage.run.rundir import RunDirectory


def keep_memory(rundir: RunDirectory) -> str | None:
    """Copies the library into the run directory; returns why that failed, or None.

    A missing library counts as empty. Called by the parent only, so that workers need no SQLite.
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
