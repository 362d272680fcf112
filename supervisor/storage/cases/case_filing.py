"""Makes cases of what a run's journal tells: each verified treatment, each crash and restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.errors import RunDirectoryError
from supervisor.storage.cases.case import OUTCOMES, Case
from supervisor.storage.cases.case_signature import LOOK_BACK_STEPS, signature
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.journal.events import read_events
from supervisor.storage.run.run_state import load_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps

Event = Mapping[str, Any]

_NO_CASES = frozenset({"completed", "interrupted", "preempted", "user_error"})
"""Exits that are nobody's fault, or that no treatment helps."""


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
    events = read_events(rundir.journal)
    precision = _precision(rundir)
    cases = []
    for index, event in enumerate(events):
        if event["kind"] == "action" and event.get("outcome") in ("helped", "failed"):
            found = _of_treatment(events, index)
        elif event["kind"] == "worker_exited" and event.get("cause") not in _NO_CASES:
            found = _of_exit(events, index)
        else:
            continue
        at, cause, treatment, outcome = found
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


def crash_signature(events: Sequence[Event], *, cause: str, precision: str) -> dict[str, Any]:
    """Returns the signature of the crash that the last of `events` belongs to.

    Args:
        events: the journal up to the crash.
        cause: a `Cause`'s value, or an `ExitCause`'s.
        precision: ``scaled`` with a gradient scaler, else ``unscaled``.
    """
    last = events[-1] if events else {}
    step = _number(last.get("step"))
    risks = [e for e in _near(events, step) if e["kind"] == "risk"]
    alerts = [e for e in _near(events, step) if e["kind"] == "alert"]
    rise = None
    if risks:
        rise = _number(risks[-1].get("step")) - _number(risks[-1].get("onset_step"))
    return signature(
        cause=cause,
        step=step,
        rise_steps=rise,
        detector=str(alerts[0].get("detector")) if alerts else None,
        is_scaled=precision == "scaled",
    )


def _of_treatment(events: Sequence[Event], index: int) -> tuple[int, str, str, str]:
    """Returns where it was applied, against what, which it was, and how it ended."""
    verdict = events[index]
    name, step = verdict.get("name"), verdict.get("applied_at")
    for at in range(index - 1, -1, -1):
        event = events[at]
        applied = event["kind"] == "action" and event.get("outcome") == "applied"
        if applied and event.get("name") == name and event.get("step") == step:
            return at, str(event.get("cause")), str(name), str(verdict["outcome"])
    return index, str(verdict.get("cause") or "other"), str(name), str(verdict["outcome"])


def _of_exit(events: Sequence[Event], index: int) -> tuple[int, str, str, str]:
    crash = events[index]
    cause = str(crash.get("cause"))
    later = events[index + 1 :]
    restart = next((e for e in later if e["kind"] in ("restart", "gave_up", "run_finished")), None)
    if restart is None or restart["kind"] != "restart":
        return index, cause, "none", "failed"
    treatment = "restart"
    before = [e for e in events[:index] if e["kind"] == "restart"]
    earlier_factor = float(before[-1].get("batch_factor", 1.0)) if before else 1.0
    if restart.get("skip_steps"):
        treatment = "restart_skipping_steps"
    elif float(restart.get("batch_factor", 1.0)) < earlier_factor:
        treatment = "restart_with_smaller_batch"
    elif float(restart.get("lr_factor", 1.0)) < 1.0:
        treatment = "restart_with_lower_lr"
    after = next((e for e in later if e["kind"] == "worker_exited"), None)
    if after is None:
        return index, cause, treatment, "unknown"
    got_further = _number(after.get("last_step")) > _number(crash.get("last_step")) + 1
    helped = after.get("cause") in _NO_CASES or got_further
    return index, cause, treatment, "helped" if helped else "failed"


def _near(events: Sequence[Event], step: int) -> list[Event]:
    return [e for e in events if step - LOOK_BACK_STEPS <= _number(e.get("step")) <= step]


def _precision(rundir: RunDirectory) -> str:
    try:
        scale = read_steps(rundir)["loss_scale"]
    except RunDirectoryError:
        return "unscaled"
    return "scaled" if bool(np.any(np.isfinite(scale) & (scale != 1.0))) else "unscaled"


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _unix(event: Event) -> float:
    try:
        return datetime.fromisoformat(str(event.get("time"))).timestamp()
    except ValueError:
        return 0.0
