"""Makes cases from a run's journal: one for each verified treatment, crash and restart.

Copies the library's cases into the run directory, for its workers (`CaseMemory`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.codes import ActionOutcome, Cause, ExitCause, ExitSign
from supervisor.errors import RunDirectoryError, SupervisorError
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.run_events import GaveUp, RestartEvent, RunFinished, WorkerExited
from supervisor.events.step_events import ActionEvent, AlertEvent, RiskEvent
from supervisor.storage.cases.case_advisor import (
    LOOK_BACK_STEPS,
    MAX_CASES,
    OUTCOMES,
    Case,
    signature,
)
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.files.private_files import write_json
from supervisor.storage.journal.events import read_journal
from supervisor.storage.run.run_state import load_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps

_NO_CASES = frozenset(
    {
        ExitCause.COMPLETED,
        ExitCause.INTERRUPTED,
        ExitCause.PREEMPTED,
        ExitCause.USER_ERROR,
    }
)
"""Exits without a fault, or against which no treatment helps."""


def file_cases(rundir: RunDirectory, library: CaseLibrary) -> int:
    """Files the cases of a run that are not in the library yet; returns how many.

    Called when a run ends, and again when its continuation does.

    Raises:
        SupervisorError: the run or the library cannot be read.
        OSError: the journal is there and cannot be read.
    """
    run = str(rundir.root)
    known = {(case.time, case.treatment) for case in library.all() if case.run == run}
    new = [case for case in cases_of_run(rundir) if (case.time, case.treatment) not in known]
    for case in new:
        library.add(case)
    return len(new)


def cases_of_run(rundir: RunDirectory) -> list[Case]:
    """Returns a run's cases, in the order of the journal.

    Raises:
        RunDirectoryError: it is no run directory.
        OSError: the journal is there and cannot be read.
    """
    script = Path(load_run_state(rundir).script).name
    events = read_journal(rundir.journal)
    precision = _precision(rundir)
    cases = []
    for index, event in enumerate(events):
        match event:
            case ActionEvent(outcome=ActionOutcome.HELPED | ActionOutcome.FAILED):
                at, cause, treatment, outcome = _of_treatment(events, index, event)
            case WorkerExited(sign=ExitSign.EXACT_RETRY):
                continue  # what came of it is told by the next attempt
            case WorkerExited(cause=ExitCause()) if event.cause not in _NO_CASES:
                at, cause, treatment, outcome = _of_exit(events, index, event)
            case _:
                continue
        cases.append(
            Case(
                time=_unix(event),
                run=str(rundir.root),
                cause=cause,
                signature=crash_signature(events[: at + 1], cause=cause, precision=precision),
                treatment=treatment,
                outcome=outcome if outcome in OUTCOMES else "unknown",
                script=script,
            )
        )
    return cases


def crash_signature(
    events: Sequence[JournalEvent], *, cause: str, precision: str
) -> dict[str, Any]:
    """Returns the signature of the crash that the last of `events` belongs to.

    Args:
        events: the journal up to the crash.
        cause: a `Cause`'s value, or an `ExitCause`'s.
        precision: ``scaled`` with a gradient scaler, else ``unscaled``.
    """
    step = _known(events[-1].step) if events else -1
    near = [event for event in events if step - LOOK_BACK_STEPS <= _known(event.step) <= step]
    risks, alerts = of_kind(near, RiskEvent), of_kind(near, AlertEvent)
    rise = None
    if risks:
        rise = _known(risks[-1].step) - _known(risks[-1].onset_step)
    return signature(
        cause=cause,
        step=step,
        rise_steps=rise,
        detector=alerts[0].detector if alerts else None,
        is_scaled=precision == "scaled",
    )


def _of_treatment(
    events: Sequence[JournalEvent], index: int, verdict: ActionEvent
) -> tuple[int, str, str, str]:
    """Returns where it was applied, against what, which it was, and how it ended."""
    name, outcome = verdict.name, verdict.outcome.value if verdict.outcome else ""
    for at in range(index - 1, -1, -1):
        match events[at]:
            case ActionEvent(outcome=ActionOutcome.APPLIED) as applied if (
                applied.name == name and applied.step == verdict.applied_at
            ):
                return at, _cause(applied), name, outcome
    return index, _cause(verdict), name, outcome


def _cause(event: ActionEvent) -> str:
    return event.cause.value if event.cause else Cause.OTHER.value


def _of_exit(
    events: Sequence[JournalEvent], index: int, crash: WorkerExited
) -> tuple[int, str, str, str]:
    cause = crash.cause.value if crash.cause else ""
    later = events[index + 1 :]
    restart = next((e for e in later if isinstance(e, (RestartEvent, GaveUp, RunFinished))), None)
    if not isinstance(restart, RestartEvent):
        return index, cause, "none", "failed"
    treatment = "restart"
    before = of_kind(events[:index], RestartEvent)
    earlier_factor = _factor(before[-1].batch_factor) if before else 1.0
    if restart.skip_steps:
        treatment = "restart_skipping_steps"
    elif _factor(restart.batch_factor) < earlier_factor:
        treatment = "restart_with_smaller_batch"
    elif _factor(restart.lr_factor) < 1.0:
        treatment = "restart_with_lower_lr"
    after = next(iter(of_kind(later, WorkerExited)), None)
    if after is None:
        return index, cause, treatment, "unknown"
    got_further = _known(after.last_step) > _known(crash.last_step) + 1
    helped = after.cause in _NO_CASES or got_further
    return index, cause, treatment, "helped" if helped else "failed"


def _factor(value: float) -> float:
    return value if math.isfinite(value) else 1.0


def _precision(rundir: RunDirectory) -> str:
    try:
        scale = read_steps(rundir)["loss_scale"]
    except RunDirectoryError:
        return "unscaled"
    return "scaled" if bool(np.any(np.isfinite(scale) & (scale != 1.0))) else "unscaled"


def _known(step: int | None) -> int:
    return -1 if step is None else step


def _unix(event: JournalEvent) -> float:
    try:
        return datetime.fromisoformat(event.time).timestamp()
    except ValueError:
        return 0.0


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
