"""Which events of the journal people are told of, and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from supervisor.events.event import JournalEvent
from supervisor.events.run_events import HangDetected, RestartEvent, RunFinished
from supervisor.events.step_events import ActionEvent
from supervisor.parent.notices.notice import Notice
from supervisor.storage.journal.treatments import JournalTreatments

ENDS = {
    "completed": ("completed", "the training ran to its end"),
    "gave_up": ("gave_up", "gave up"),
    "failed": ("gave_up", "the script failed, and another attempt would not help"),
    "interrupted": ("preempted", "ended as asked; `supervisor resume` continues"),
}
"""State of a finished run → event of its notice, and its words."""


class NoticedEvents:
    """Turns the journal's events into notices, treatments once each.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._treatments = JournalTreatments()

    def of(self, events: Iterable[JournalEvent], attempt: int) -> Iterator[Notice]:
        """Yields the notices of the next events, in their order."""
        for event in events:
            for name, treated in self._treatments.pick([event]):
                yield self._treated(name, treated, attempt)
            match event:
                case RestartEvent():
                    text = f"starts attempt {event.next_attempt}: {event.reason}"
                    yield self._notice("restart", text, event, attempt)
                case HangDetected():
                    text = f"hangs: {next(iter(event.evidence), 'no sign of life')}"
                    yield self._notice("hang", text, event, attempt)
                case RunFinished() if event.state in ENDS:
                    name, words = ENDS[event.state]
                    why = f": {event.reason}" if name != "completed" and event.reason else ""
                    yield self._notice(name, words + why, event, attempt)

    def _treated(self, name: str, event: JournalEvent, attempt: int) -> Notice:
        why = event.reason if isinstance(event, ActionEvent) else None
        text = f"{name} at step {event.step}{f': {why}' if why else ''}"
        return self._notice("treated", text, event, attempt)

    def _notice(self, name: str, text: str, event: JournalEvent, attempt: int) -> Notice:
        own = {key: value for key, value in event.own_fields().items() if _is_small(value)}
        number = event.attempt or attempt
        return Notice(
            event=name, run=self._run, text=text, attempt=number, step=event.step, details=own
        )


def _is_small(value: object) -> bool:
    return value is None or (isinstance(value, (str, int, float, bool)) and len(str(value)) < 500)
