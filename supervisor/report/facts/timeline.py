"""The story of a run: the journal's events as sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.report.facts.attempts import sentences
from supervisor.report.facts.crash_report import TimelineEntry
from supervisor.report.facts.figures import duration, integer, number, show
from supervisor.report.facts.run_data import RunData
from supervisor.storage.journal.treatments import times

EXITS = {
    "completed": "The worker ran to its end.",
    "exception": "The worker ended with an exception.",
    "out_of_memory": "The worker ran out of GPU memory.",
    "host_out_of_memory": "The worker was ended because the host's memory ran out.",
    "killed": "The worker was killed.",
    "hang": "The worker hung and was ended.",
    "nonfinite": "The worker was ended because of numerical trouble.",
    "interrupted": "The run was interrupted.",
    "preempted": "The run was preempted.",
    "user_error": "The script failed.",
}
_QUIET = frozenset({"checkpoint_stable", "state_found"})
ANNOUNCED = "announced change"
"""What `state_found` has found when the script called `supervisor.announce`."""
ANOTHER_TRAINING = "another training"
ANOTHER_LEVEL = "another level"
"""When restored weights have shown that weights are not to blame (`ladder.rollback_evaluation`)."""
_SAME_LINES = 3  # of one kind and wording in a row before they are folded into one


def build_timeline(run_data: RunData) -> tuple[TimelineEntry, ...]:
    """Returns the events in the order of time; long rows of the same event are folded."""
    thought_of = {
        (event.get("name"), integer(event.get("step")))
        for event in run_data.of_kind("action")
        if event.get("applied") is False
    }
    entries = [
        _entry(event)
        for event in run_data.events
        if not _is_quiet(event)
        and not (
            event.get("phase") == "verified"
            and (event.get("name"), integer(event.get("applied_at"))) in thought_of
        )
    ]
    return tuple(_fold(entries))


def _is_quiet(event: dict[str, Any]) -> bool:
    told = (ANNOUNCED, ANOTHER_TRAINING, ANOTHER_LEVEL)
    return event.get("kind") in _QUIET and event.get("found") not in told


def _entry(event: dict[str, Any]) -> TimelineEntry:
    kind = str(event.get("kind") or "event")
    tone, text = _WORDS.get(kind, _other)(event)
    more = times(event) - 1
    if more:
        text = f"{text} ({more} like it, before or around it, were only counted.)"
    return TimelineEntry(
        time=str(event.get("time") or ""),
        kind=kind,
        tone=tone,
        text=text,
        step=integer(event.get("step")),
        attempt=integer(event.get("attempt")),
        rank=integer(event.get("rank")),
    )


def _fold(entries: list[TimelineEntry]) -> list[TimelineEntry]:
    folded: list[TimelineEntry] = []
    index = 0
    while index < len(entries):
        end = index
        while end + 1 < len(entries) and _alike(entries[index], entries[end + 1]):
            end += 1
        amount = end - index + 1
        if amount <= _SAME_LINES:
            folded.extend(entries[index : end + 1])
        else:
            last = entries[end]
            note = TimelineEntry(
                time=last.time,
                kind=last.kind,
                tone=last.tone,
                text=f"... and {amount - 1} more like it, the last at step {show(last.step)}.",
                step=last.step,
                attempt=last.attempt,
                rank=last.rank,
            )
            folded.extend([entries[index], note])
        index = end + 1
    return folded


def _alike(one: TimelineEntry, other: TimelineEntry) -> bool:
    if one.kind != other.kind or one.attempt != other.attempt:
        return False
    foldable = {"alert", "risk", "checkpoint_saved", "update_skipped", "batch_captured"}
    return one.kind in foldable and one.tone == other.tone


def _run_started(event: dict[str, Any]) -> tuple[str, str]:
    return "info", "The run was started."


def _attempt_started(event: dict[str, Any]) -> tuple[str, str]:
    return "info", f"Attempt {show(integer(event.get('attempt')))} started."


def _alert(event: dict[str, Any]) -> tuple[str, str]:
    severity = str(event.get("severity") or "")
    tone = "bad" if severity == "critical" else "warn"
    text = _text(event, "message", "reason") or "An alert without words."
    return tone, f"{severity.capitalize()}: {text}" if severity else text


def _risk(event: dict[str, Any]) -> tuple[str, str]:
    value = number(event.get("risk", event.get("probability")))
    reason = _text(event, "reason", "message")
    tone = "bad" if event.get("alarm") else "warn"
    return tone, f"Crash risk {show(value, 2)}" + (f": {reason}" if reason else ".")


def _action(event: dict[str, Any]) -> tuple[str, str]:
    if event.get("phase") == "verified":
        outcome = str(event.get("outcome") or "unknown").replace("_", " ")
        name, step = event.get("name"), show(integer(event.get("applied_at")))
        return "info", f"Looked back at {name} of step {step}: {outcome}."
    detail = _text(event, "detail", "reason")
    outcome = str(event.get("outcome") or "")
    cost = number(event.get("cost_s"))
    parts = [f"Treatment {event.get('name') or 'without name'}"]
    if event.get("cause"):
        parts.append(f"because of {str(event['cause']).replace('_', ' ')}")
    text = " ".join(parts)
    if outcome:
        text += f": {outcome.replace('_', ' ')}"
    if cost >= 0.0005:
        text += f" ({duration(cost) if cost >= 0.1 else f'{cost * 1000:.1f} ms'})"
    return "info", f"{text}. {detail}".strip() if detail else f"{text}."


def _action_undone(event: dict[str, Any]) -> tuple[str, str]:
    return "good", f"Treatment {event.get('name')} was taken back: the run is healthy again."


def _found(event: dict[str, Any]) -> tuple[str, str]:
    if event.get("found") == ANOTHER_TRAINING:
        return "info", "Another training of the same script is supervised from here on."
    change = _text(event, "detail")
    if event.get("found") == ANOTHER_LEVEL:
        return "info", f"The weights were acquitted: {change}."
    return "info", f"The script announced a change: {change or 'it did not say which'}."


def _saved(event: dict[str, Any]) -> tuple[str, str]:
    if event.get("abandoned"):
        step, reason = show(integer(event.get("step"))), _text(event, "reason")
        back = _text(event, "command")
        return "info", f"State of step {step} kept, {reason}; the way back to it: {back}"
    return "good", f"Checkpoint of step {show(integer(event.get('step')))} saved."


def _rejected(event: dict[str, Any]) -> tuple[str, str]:
    reason = _text(event, "reason", "message", "detail")
    return "bad", f"A checkpoint was not used: {reason or 'it is damaged'}."


def _rollback(event: dict[str, Any]) -> tuple[str, str]:
    source = integer(event.get("from_step"))
    source = integer(event.get("step")) if source is None else source
    target = show(integer(event.get("to_step")))
    if event.get("name") == "back_to_start":
        return "warn", f"Back from step {show(source)} to the untrained weights."
    return "warn", f"Rolled back from step {show(source)} to the state of step {target}."


def _skipped(event: dict[str, Any]) -> tuple[str, str]:
    reason = _text(event, "reason", "message")
    return "warn", f"Update left out{f': {reason}' if reason else '.'}"


def _captured(event: dict[str, Any]) -> tuple[str, str]:
    return "info", "The batch of this step was saved."


def _hang(event: dict[str, Any]) -> tuple[str, str]:
    reason = _text(event, "reason", "message", "detail")
    return "bad", f"Hang detected{f': {reason}' if reason else '.'}"


def _exited(event: dict[str, Any]) -> tuple[str, str]:
    cause = str(event.get("cause") or "")
    text = EXITS.get(cause, "The worker ended.")
    signum = integer(event.get("signum"))
    if signum and cause == "killed":
        text = f"The worker was killed by signal {signum}."
    evidence = sentences(event.get("evidence"))
    tone = "good" if cause == "completed" else "bad"
    return tone, f"{text} {evidence[0]}" if evidence and cause != "completed" else text


def _restart(event: dict[str, Any]) -> tuple[str, str]:
    reason = _text(event, "reason", "message")
    return "warn", f"A new attempt was ordered{f': {reason}' if reason else '.'}"


def _resumed(event: dict[str, Any]) -> tuple[str, str]:
    step = integer(event.get("from_step"))
    exactness = str(event.get("exactness") or "")
    start = "from the beginning" if step is None else f"from the checkpoint of step {step}"
    reason = _text(event, "reason", "message")
    text = f"Resumed {start}" + (f", {exactness}" if exactness else "")
    tone = "warn" if exactness == "approximate" else "good"
    return tone, f"{text}: {reason}" if reason else f"{text}."


def _signal(event: dict[str, Any]) -> tuple[str, str]:
    return "warn", f"Signal {event.get('name') or event.get('signum') or ''} received."


def _warning(event: dict[str, Any]) -> tuple[str, str]:
    return "warn", _text(event, "message", "reason", "detail") or "A warning without words."


def _gave_up(event: dict[str, Any]) -> tuple[str, str]:
    reason = _text(event, "reason", "message")
    return "bad", f"Gave up{f': {reason}' if reason else '.'}"


def _finished(event: dict[str, Any]) -> tuple[str, str]:
    state = str(event.get("state") or "")
    return ("good" if state in {"", "completed"} else "info"), (
        f"The run ended: {state.replace('_', ' ')}." if state else "The run ended."
    )


def _other(event: dict[str, Any]) -> tuple[str, str]:
    kind = str(event.get("kind") or "event").replace("_", " ").capitalize()
    detail = _text(event, "message", "reason", "detail")
    return "info", f"{kind}: {detail}" if detail else f"{kind}."


def _text(event: dict[str, Any], *names: str) -> str:
    """Returns the first of these fields that holds words."""
    return next((str(event[name]) for name in names if event.get(name)), "")


_WORDS: dict[str, Callable[[dict[str, Any]], tuple[str, str]]] = {
    "run_started": _run_started,
    "attempt_started": _attempt_started,
    "alert": _alert,
    "risk": _risk,
    "action": _action,
    "action_undone": _action_undone,
    "checkpoint_saved": _saved,
    "checkpoint_rejected": _rejected,
    "rollback": _rollback,
    "update_skipped": _skipped,
    "state_found": _found,
    "batch_captured": _captured,
    "hang_detected": _hang,
    "worker_exited": _exited,
    "restart": _restart,
    "resumed": _resumed,
    "signal_received": _signal,
    "warning": _warning,
    "gave_up": _gave_up,
    "run_finished": _finished,
}
