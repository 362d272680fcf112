"""The end of a worker as a piece of trouble: what it was, where it stood, what speaks for it."""

from __future__ import annotations

import re
from typing import Any

from supervisor.report.attempts import first_exit, sentences
from supervisor.report.crash_report import Attempt, Incident
from supervisor.report.evidence import process_evidence
from supervisor.report.figures import clock, integer, moment
from supervisor.report.material import Material
from supervisor.report.timeline import EXITS

PROCESS_CAUSES = frozenset(EXITS) - {"completed"}
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def process_incident(material: Material, attempt: Attempt, *, survived: bool) -> Incident | None:
    """Returns the end of an attempt as an incident; None if it ended as it should."""
    event = first_exit(material, attempt.number)
    hang = next(
        (e for e in material.of_kind("hang_detected") if e.get("attempt") == attempt.number), None
    )
    cause = "hang" if hang else attempt.cause
    if cause not in PROCESS_CAUSES:
        return None
    step = attempt.last_step
    where = f" after step {step}" if step is not None else " before its first step"
    words = EXITS[cause].rstrip(".")
    if cause == "killed" and attempt.signum:
        words = f"The worker was killed by signal {attempt.signum}"
    evidence_for, evidence_against = process_evidence(material, attempt, cause)
    return Incident(
        key=cause,
        sentence=f"{words}{where}{_named(material, attempt, cause)}{_stood(hang)}.",
        step=step,
        attempt=attempt.number,
        time=clock(moment((hang or event or {}).get("time"))) or attempt.ended,
        survived=survived,
        evidence_for=(*_hang_evidence(hang), *evidence_for),
        evidence_against=evidence_against,
    )


def _stood(hang: dict[str, Any] | None) -> str:
    """Where the main thread of a hung worker stood; empty if that is not known."""
    frames = sentences((hang or {}).get("frames"))
    return f", in {frames[0]}" if frames else ""


def _hang_evidence(hang: dict[str, Any] | None) -> tuple[str, ...]:
    if hang is None:
        return ()
    said = sentences(hang.get("evidence"))
    frames = sentences(hang.get("frames"))
    calls = [text for text in said if text not in frames]
    if frames:
        calls.append(f"The main thread stood in {', called from '.join(frames)}.")
    return tuple(calls)


def _named(material: Material, attempt: Attempt, cause: str) -> str:
    """The exception itself, and its line, belong into the first sentence that is read."""
    if cause not in ("exception", "user_error", "out_of_memory") or not attempt.evidence:
        return ""
    return f": {attempt.evidence[0].strip().rstrip('.')[:300]}{_raised(material, attempt.number)}"


def _raised(material: Material, attempt: int) -> str:
    """The innermost line of the script in the traceback; empty if none was noted."""
    script = str(material.run.get("cwd") or "\0")
    for note in material.exit_notes:
        if integer(note.get("attempt")) != attempt:
            continue
        frames = _FRAME.findall(str(note.get("traceback") or ""))
        own = [frame for frame in frames if frame[0].startswith(script)] or frames
        if own:
            file, line, function = own[-1]
            return f" ({file}:{line}, in {function})"
    return ""
