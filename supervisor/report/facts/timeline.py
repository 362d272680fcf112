"""The story of a run: the journal's events as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.codes import Found
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.state_events import CheckpointStable, StateFound
from supervisor.events.step_events import ActionEvent
from supervisor.report.facts.crash_report import TimelineEntry
from supervisor.report.facts.event_words import describe
from supervisor.report.facts.figures import show
from supervisor.report.facts.run_data import RunData

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


def build_timeline(run_data: RunData) -> tuple[TimelineEntry, ...]:
    """Returns the story of a run."""
    return timeline_of(run_data.events)


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
