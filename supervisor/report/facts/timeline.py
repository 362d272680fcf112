"""The story of a run: the journal's events as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.codes import Exactness, ExitCause, Found, Severity
from supervisor.events import run_events, state_events, step_events
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.state_events import CheckpointStable, StateFound
from supervisor.events.step_events import ActionEvent
from supervisor.report.facts.crash_report import TimelineEntry
from supervisor.report.facts.figures import duration, show

EXITS = {
    ExitCause.COMPLETED: "The worker ran to its end.",
    ExitCause.EXCEPTION: "The worker ended with an exception.",
    ExitCause.OUT_OF_MEMORY: "The worker ran out of GPU memory.",
    ExitCause.HOST_OUT_OF_MEMORY: "The worker was killed because the host ran out of memory.",
    ExitCause.KILLED: "The worker was killed.",
    ExitCause.HANG: "The worker hung and was stopped.",
    ExitCause.NONFINITE: "The worker was stopped because of numerical trouble.",
    ExitCause.INTERRUPTED: "The run was interrupted.",
    ExitCause.PREEMPTED: "The run was preempted.",
    ExitCause.USER_ERROR: "The script failed.",
}

Words = tuple[str, str]
"""Tone (``good``, ``info``, ``warn``, ``bad``) and sentence."""


def describe(event: JournalEvent) -> Words:
    """Returns tone and sentence of any event, those of unknown kinds included."""
    return _of_steps(event) or _of_state(event) or _of_run(event) or _of_unknown(event)


def _of_steps(event: JournalEvent) -> Words | None:
    match event:
        case step_events.AlertEvent():
            return _alert(event)
        case step_events.RiskEvent():
            risk = f"Crash risk {show(event.probability, 2)}"
            return "bad" if event.alarm else "warn", _with(risk, event.reason)
        case step_events.ActionEvent():
            return "info", _looked_back(event) if event.is_verdict else _treatment(event)
        case step_events.ActionUndone():
            return "good", f"Treatment {event.name} was taken back: the run is healthy again."
        case step_events.RollbackEvent():
            return "warn", _rollback(event)
        case step_events.UpdateSkipped():
            return "warn", _with("Update left out", event.reason)
        case step_events.BatchCaptured():
            return "info", "The batch of this step was saved."
        case step_events.CorruptionFound():
            return "bad", corruption_sentence(event)
    return None


def _of_state(event: JournalEvent) -> Words | None:
    match event:
        case state_events.StateFound():
            return "info", _found(event)
        case state_events.CheckpointSaved(abandoned=True):
            kept = f"State of step {show(event.step)} kept, {event.reason}"
            return "info", f"{kept}; to go back to it: {event.command or ''}"
        case state_events.CheckpointSaved():
            return "good", f"Checkpoint of step {show(event.step)} saved."
        case state_events.CheckpointRejected():
            return "bad", f"A checkpoint was not used: {event.reason or 'it is damaged'}."
        case state_events.Resumed():
            return _resumed(event)
        case state_events.WarningEvent():
            return "warn", event.message or "A warning without text."
    return None


def _of_run(event: JournalEvent) -> Words | None:
    match event:
        case run_events.RunStarted():
            return "info", "The run was started."
        case run_events.AttemptStarted():
            return "info", f"Attempt {show(event.attempt)} started."
        case run_events.HangDetected():
            return "bad", "Hang detected." if event.rank is None else (
                f"Hang detected: rank {event.rank}."
            )
        case run_events.WorkerExited():
            return _exited(event)
        case run_events.RestartEvent():
            return "warn", _with("A new attempt was ordered", event.reason)
        case run_events.SignalReceived():
            return "warn", f"Signal {event.name or event.signum or ''} received."
        case run_events.GaveUp():
            return "bad", _with("Gave up", event.reason)
        case run_events.RunFinished(state=""):
            return "good", "The run ended."
        case run_events.RunFinished():
            tone = "good" if event.state == "completed" else "info"
            return tone, f"The run ended: {event.state.replace('_', ' ')}."
    return None


def _of_unknown(event: JournalEvent) -> Words:
    said = [event.extra.get(name) for name in ("message", "reason", "detail")]
    kind = (event.kind or "event").replace("_", " ").capitalize()
    return "info", _with(kind, next((str(text) for text in said if text), ""))


def _with(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else f"{text}."


def _alert(event: step_events.AlertEvent) -> Words:
    text = event.message or "An alert without text."
    if event.severity is None:
        return "warn", text
    tone = "bad" if event.severity is Severity.CRITICAL else "warn"
    return tone, f"{event.severity.value.capitalize()}: {text}"


def _looked_back(event: step_events.ActionEvent) -> str:
    outcome = event.outcome.value.replace("_", " ") if event.outcome else "unknown"
    return f"Outcome of {event.name} at step {show(event.applied_at)}: {outcome}."


def _treatment(event: step_events.ActionEvent) -> str:
    text = f"Treatment {event.name or 'without name'}"
    if event.cause:
        text += f" because of {event.cause.value.replace('_', ' ')}"
    if event.outcome:
        text += f": {event.outcome.value.replace('_', ' ')}"
    cost_s = event.cost_s
    if cost_s >= 0.0005:
        text += f" ({duration(cost_s) if cost_s >= 0.1 else f'{cost_s * 1000:.1f} ms'})"
    detail = event.detail or event.reason
    return f"{text}. {detail}" if detail else f"{text}."


def _rollback(event: step_events.RollbackEvent) -> str:
    source = show(event.step if event.from_step is None else event.from_step)
    if event.name == "back_to_start":
        return f"Back from step {source} to the untrained weights."
    return f"Rolled back from step {source} to the state of step {show(event.to_step)}."


def corruption_sentence(event: step_events.CorruptionFound) -> str:
    """Says what was corrupted, and whether it was healed."""
    if event.rule == "replica":
        whose = f" of rank {', '.join(map(str, event.ranks))}" if event.ranks else ""
        back = ": all went back" if event.healed == "rollback" else ": not healed"
        return f"Corrupted: the replica{whose} of {event.tensor} differs from the others{back}."
    where = ", ".join(map(str, event.index))
    if event.rule == "compute":
        kept = "replaced" if event.healed == "in_place" else "not replaced"
        return (
            f"Calculated wrongly: {event.tensor}[{where}] was {show(event.value)}, and "
            f"{show(event.before)} each time that it was calculated again: {kept}."
        )
    bit = "" if event.bit is None else f", bit {event.bit} flipped"
    more = "" if event.elements in (1, None) else f" and {(event.elements or 1) - 1} more elements"
    healed = {
        "in_place": "put back in place",
        "rollback": "rolled back",
    }.get(event.healed, "not healed")
    return (
        f"Corrupted: {event.tensor}[{where}]{more} is {show(event.value)}, was "
        f"{show(event.before)} at step {show(event.from_step)} (bound {show(event.bound)}{bit}): "
        f"{healed}."
    )


def _found(event: state_events.StateFound) -> str:
    change = event.detail or ""
    match event.found:
        case Found.ANOTHER_TRAINING:
            return "Another training of the same script is supervised from here on."
        case Found.ANOTHER_LEVEL:
            return f"The weights were not to blame: {change}."
        case Found.TRIAL_STEP:
            return f"A trial step: {change}."
        case Found.OTHER_DATA:
            return f"The data have changed: {change}."
        case Found.REINFORCEMENT:
            return f"Reinforcement learning, its losses have no usual course: {change}."
        case Found.RATE_TEST:
            return f"The script tries learning rates: {change}."
        case Found.SCRIPT_CHANGE:
            return f"The script has changed the training: {change}."
        case Found.ANNOUNCED:
            return f"The script announced a change: {change or 'it did not say which'}."
        case Found.RETRY_ASKED:
            start = show(event.before_step)
            return f"The steps since {start} are computed once more, exactly, before {change}."
        case Found.COPIES_HELD:
            return f"Copies of the state in memory: {show(event.count)}."
        case Found.MEMORY:
            return (event.message or "").capitalize() + "."
        case Found.RETRY_REPEATED | Found.RETRY_UNDECIDED:
            return (event.message or "").capitalize() + "."
    found = event.found.value if event.found else "something"
    return _with(f"Found {found}", event.detail or event.message or "")


def _resumed(event: state_events.Resumed) -> Words:
    start = "from the beginning"
    if event.from_step is not None:
        start = f"from the checkpoint of step {event.from_step}"
    exactness = f", {event.exactness.value}" if event.exactness else ""
    tone = "warn" if event.exactness is Exactness.APPROXIMATE else "good"
    return tone, _with(f"Resumed {start}{exactness}", event.reason)


def _exited(event: run_events.WorkerExited) -> Words:
    if event.cause is ExitCause.COMPLETED:
        return "good", EXITS[event.cause]
    text = EXITS[event.cause] if event.cause else "The worker ended."
    if event.cause is ExitCause.KILLED and event.signum:
        text = f"The worker was killed by signal {event.signum}."
    return "bad", f"{text} {event.evidence[0]}" if event.evidence else text


TOLD = frozenset(
    {
        Found.ANNOUNCED, Found.ANOTHER_TRAINING, Found.ANOTHER_LEVEL, Found.OTHER_DATA,
        Found.SCRIPT_CHANGE, Found.RATE_TEST, Found.TRIAL_STEP, Found.REINFORCEMENT,
        Found.RETRY_ASKED, Found.RETRY_REPEATED, Found.RETRY_UNDECIDED,
    }
)  # fmt: skip
"""Other findings about the state are left out of the story."""
_SAME_LINES = 3  # of one kind and wording in a row before they are folded into one
FOLDABLE = frozenset({"alert", "risk", "checkpoint_saved", "update_skipped", "batch_captured"})


def timeline_of(events: Sequence[JournalEvent]) -> tuple[TimelineEntry, ...]:
    """Returns the events in the order of time; long rows of the same event are folded."""
    actions = of_kind(events, ActionEvent)
    thought_of = {(e.name, e.step) for e in actions if e.applied is False}
    entries = [_entry(event) for event in events if not _is_quiet(event, thought_of)]
    return tuple(_fold(entries))


def _is_quiet(event: JournalEvent, thought_of: set[tuple[str, int | None]]) -> bool:
    match event:
        case CheckpointStable():
            return True
        case StateFound(found=found):
            return found not in TOLD
        case ActionEvent(is_verdict=True):
            return (event.name, event.applied_at) in thought_of
    return False


def _entry(event: JournalEvent) -> TimelineEntry:
    tone, text = describe(event)
    if event.left_out > 0:
        text = f"{text} ({event.left_out} like it, before or around it, were only counted.)"
    return TimelineEntry(
        time=event.time,
        kind=event.kind or "event",
        tone=tone,
        text=text,
        step=event.step,
        attempt=event.attempt,
        rank=event.rank,
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
    return one.kind in FOLDABLE and one.tone == other.tone
