"""What the case library knew when a run began, kept with the run in ``RUN/cases.json``.

The parent writes it before each start or resume; workers read it. So all attempts and ranks of a
run get the same advice, and no worker waits for a database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from supervisor.storage.cases.case import SIMILAR, Case, similarity
from supervisor.storage.files.checked_record import build_record
from supervisor.storage.files.line_file import parse_json
from supervisor.storage.run.rundir import RunDirectory

MAX_CASES = 500
"""Number of newest cases that are kept: 150 KB, compared within 2 ms."""


class CaseMemory:
    """The cases whose outcome is known, in memory."""

    def __init__(self, cases: Iterable[Case] = ()) -> None:
        known = [case for case in cases if case.outcome in ("helped", "failed")]
        self.cases: tuple[Case, ...] = tuple(known[-MAX_CASES:])

    def treatments(self, signature: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the treatments that helped more than they failed in similar cases, best first.

        Only cases of the same cause count, each by its similarity.
        """
        scores: dict[str, float] = defaultdict(float)
        for case in self.cases:
            if case.signature.get("cause") != signature["cause"]:
                continue
            likeness = similarity(signature, case.signature)
            if likeness >= SIMILAR:
                scores[case.treatment] += likeness if case.outcome == "helped" else -likeness
        good = [name for name in scores if scores[name] > 0.0]
        return tuple(sorted(good, key=lambda name: (-scores[name], name)))


def load_memory(rundir: RunDirectory) -> CaseMemory:
    """Returns what `keep_memory` wrote; an empty memory if it cannot be read. Never raises."""
    try:
        cases = parse_json(rundir.cases.read_bytes())
        return CaseMemory([build_record(Case, case) for case in cases])
    except (OSError, ValueError, TypeError, RecursionError):
        return CaseMemory()
