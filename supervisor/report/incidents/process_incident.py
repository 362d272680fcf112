"""The end of a worker as an incident: what happened, where the script stood, and the evidence."""

from __future__ import annotations

import re
import signal

from supervisor.codes import ExitCause, ExitSign
from supervisor.events.run_events import HangDetected
from supervisor.report.facts.attempts import first_exit
from supervisor.report.facts.crash_report import AttemptFacts, Incident
from supervisor.report.facts.figures import clock, integer, moment, show
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.timeline import EXITS
from supervisor.report.incidents.evidence import process_evidence

DISK_REFUSALS = {
    ExitSign.NO_SPACE: "No space left on device",
    ExitSign.FILE_TOO_LARGE: "File too large",
    ExitSign.QUOTA_EXCEEDED: "Disk quota exceeded",
}
PROCESS_CAUSES = frozenset(cause.value for cause in EXITS) - {"completed"}
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def process_incident(
    run_data: RunData, attempt: AttemptFacts, *, survived: bool
) -> Incident | None:
    """Returns the end of an attempt as an incident; None if it ended as it should."""
    hangs = [event for event in run_data.of(HangDetected) if event.attempt == attempt.number]
    hang = hangs[0] if hangs else None
    event = hang or first_exit(run_data, attempt.number)
    cause = attempt.cause
    if cause not in PROCESS_CAUSES:
        return None
    step = attempt.last_step
    where = f" after step {step}" if step is not None else " before its first step"
    words = EXITS[ExitCause(cause)].rstrip(".")
    if cause == "killed" and attempt.signum:
        words = f"The worker was killed by {_signal(attempt.signum)}"
        if attempt.sign is ExitSign.OWN_SIGNAL:
            words = f"The script's process sent itself {_signal(attempt.signum)}"
    key: str = cause
    if attempt.sign is ExitSign.MISTAKE:
        key, words = "mistake", "The run was stopped at a mistake of the script"
    if attempt.sign is ExitSign.FAILING_DEVICE:
        words += ", while NVML saw a device's hardware fail"
    if attempt.sign is ExitSign.SUPERVISOR_DIED:
        key = "supervisor_died"
        words = "The supervisor was killed, or its machine went down, and the worker with it"
    evidence_for, evidence_against = process_evidence(run_data, attempt, cause)
    return Incident(
        key=key,
        sentence=f"{words}{where}{_named(run_data, attempt, cause)}{_stood(run_data, hang)}.",
        step=step,
        attempt=attempt.number,
        time=(clock(moment(event.time)) if event else "") or attempt.ended,
        survived=survived,
        sign=attempt.sign,
        evidence_for=(*_hang_evidence(hang), *evidence_for),
        evidence_against=evidence_against,
    )


def _signal(signum: int) -> str:
    try:
        return f"{signal.Signals(signum).name} (signal {signum})"
    except ValueError:
        return f"signal {signum}"


def _stood(run_data: RunData, hang: HangDetected | None) -> str:
    """Where the main thread of a hung worker stood: the script's own line, and what it waited in.

    Empty if that is not known.
    """
    frames = hang.frames if hang else ()
    if not frames:
        return ""
    own = next((frame for frame in frames if _is_own(run_data, frame.rpartition(" (")[2])), None)
    if own is None or own == frames[0]:
        return f", in {frames[0]}"
    line = own.rpartition(" (")[2].rstrip(")")
    return f", at {line}, which had called {frames[0]}"


def _is_own(run_data: RunData, file: str) -> bool:
    """Whether a file is the script's, not an installed package's."""
    folder = str(run_data.run.get("cwd") or "\0")
    return file.startswith(folder) and "site-packages" not in file


def _hang_evidence(hang: HangDetected | None) -> tuple[str, ...]:
    if hang is None:
        return ()
    said = [text for text in hang.evidence if text not in hang.frames]
    if hang.frames:
        said.append(f"The main thread was in {', called from '.join(hang.frames)}.")
    return tuple(said)


def _named(run_data: RunData, attempt: AttemptFacts, cause: str) -> str:
    """The exception and its line, which belong in the first sentence."""
    if cause == "host_out_of_memory":
        return f"{_asked_for(attempt)}{_raised(run_data, attempt.number)}"
    if cause not in ("exception", "user_error", "out_of_memory") or not attempt.evidence:
        return ""
    if attempt.sign is ExitSign.OWN_EXIT:
        return f": {attempt.evidence[0].strip()}{_last_words(run_data)}"
    refused = DISK_REFUSALS.get(attempt.sign) if attempt.sign else None
    if refused:
        return f": a file could not be written ({refused}){_raised(run_data, attempt.number)}"
    return f": {attempt.evidence[0].strip().rstrip('.')[:300]}{_raised(run_data, attempt.number)}"


def _last_words(run_data: RunData) -> str:
    """The last line of the output: a script that exits usually says why."""
    lines = run_data.log_tail.text.splitlines() if run_data.log_tail else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f", and said last: {last.rstrip('.')[:300]}" if last else ""


def _asked_for(attempt: AttemptFacts) -> str:
    """How much memory was asked for at once, where that is known."""
    size = attempt.asked_bytes
    return "" if size is None else f": {show(size / (1 << 30), 3)} GiB were asked for at once"


def _raised(run_data: RunData, attempt: int) -> str:
    """The innermost line of the script in the traceback; empty if none was noted."""
    for note in run_data.exit_notes:
        if integer(note.get("attempt")) != attempt:
            continue
        frames = _FRAME.findall(str(note.get("traceback") or ""))
        own = [frame for frame in frames if _is_own(run_data, frame[0])] or frames
        if own:
            file, line, function = own[-1]
            return f" ({file}:{line}, in {function})"
    return ""
