"""The parent's notices: from its journal to the recipients of its config."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.errors import ConfigError
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import HangDetected, RestartEvent, RunFinished
from supervisor.events.step_events import ActionEvent
from supervisor.parent.notices.notice import Notice
from supervisor.parent.notices.notifier import Notifier
from supervisor.settings import NotifySettings
from supervisor.storage.journal.treatments import JournalTreatments

if TYPE_CHECKING:
    from supervisor.parent.notices.recipient import Recipient

CALM_S = 60.0
"""So long without an alarm, and a sickness is over."""


class Notices:
    """Hears the journal, and looks about once a second whether the run stays sick.

    Args:
        run: the run directory.
        settings: who is told, and what.

    Raises:
        ConfigError: an address is missing.
    """

    def __init__(self, run: Path, settings: NotifySettings) -> None:
        self._run = run
        self._settings = settings
        self._events = NoticedEvents(run)
        self._notifier = Notifier(
            _recipients(settings), settings.events, at_least_s=settings.at_least_s
        )
        self._sick_since_s: float | None = None
        self._alarm_s = 0.0
        self._told_sick = False
        self._failed: list[str] = []

    def saw(self, events: Sequence[JournalEvent], attempt: int) -> None:
        """Tells what people want to know of the journal's next events."""
        try:
            for notice in self._events.of(events, attempt):
                self._notifier.tell(notice)
        except Exception as error:  # whoever writes to the journal has other things to do
            self._failed.append(f"notices: {type(error).__name__}: {error}")

    def look(self, *, alarm: bool, step: int | None, attempt: int) -> list[str]:
        """Tells once of a run that has been in alarm for long; returns what could not be told."""
        now_s = time.monotonic()
        if alarm:
            self._alarm_s = now_s
            if self._sick_since_s is None:
                self._sick_since_s = now_s
        elif now_s - self._alarm_s > CALM_S:
            self._sick_since_s, self._told_sick = None, False
        since_s = self._sick_since_s
        if since_s is not None and not self._told_sick:
            sick_s = now_s - since_s
            if sick_s >= self._settings.sick_after_s:
                self._told_sick = True
                text = f"has been in alarm for {sick_s / 60.0:.0f} minutes"
                notice = Notice(event="sick", run=self._run, text=text, attempt=attempt, step=step)
                self._notifier.tell(notice)
        return self._problems()

    def close(self) -> list[str]:
        """Sends what waits, within seconds; returns what could not be told."""
        self._notifier.close()
        return self._problems()

    def _problems(self) -> list[str]:
        failed, self._failed = self._failed, []
        return [*failed, *self._notifier.problems()]


def _recipients(settings: NotifySettings) -> list[Recipient]:
    if settings == NotifySettings():
        return []
    from supervisor.parent.notices.recipient import make_recipients  # its libraries take 50 ms

    return make_recipients(settings)


def notices_for(
    run: Path, settings: NotifySettings, *, is_resume: bool
) -> tuple[Notices, str | None]:
    """Returns the notices of a run, and why there are none.

    A run that is continued, by a scheduler perhaps, does not fail for an address that is missing.

    Raises:
        ConfigError: an address is missing, and the run is a new one.
    """
    try:
        return Notices(run, settings), None
    except ConfigError as error:
        if not is_resume:
            raise
        return Notices(run, NotifySettings()), str(error)


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
