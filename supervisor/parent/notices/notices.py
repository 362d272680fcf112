"""The parent's notices: from its journal to the recipients of its config.

Sends notices on a thread of its own, so that no server can hold up the supervision.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.errors import ConfigError
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import HangDetected, RestartEvent, RunFinished
from supervisor.events.step_events import ActionEvent, AlertEvent
from supervisor.parent.notices.notice import Notice
from supervisor.settings import NotifySettings
from supervisor.storage.journal.events import JournalTreatments

if TYPE_CHECKING:
    from supervisor.parent.notices.recipient import Recipient


WAITS_S = (1.0, 5.0, 30.0)
"""Before the second, third and fourth try: a server that restarts is back by then."""

MOST_WAITING = 100
"""Notices on their way; further ones are left out and counted."""

LAST_WORDS_S = 10.0
"""How long the end of a run waits for what is still on its way."""

ENDS = frozenset({"completed", "gave_up", "preempted"})
"""Told whatever came before: there is one of them."""


class Notifier:
    """Told of every notice in the parent's own thread; never raises, never waits until `close`.

    Args:
        recipients: where to. One that fails is tried four times, then left out for this notice;
            what failed is told by `problems`.
        events: that are told.
        at_least_s: between two notices of one event, the ends aside.
        clock: in seconds.
    """

    def __init__(
        self,
        recipients: Sequence[Recipient],
        events: Sequence[str],
        *,
        at_least_s: float,
        waits_s: Sequence[float] = WAITS_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recipients = recipients
        self._events = frozenset(events)
        self._at_least_s = at_least_s
        self._waits_s = waits_s
        self._clock = clock
        self._last_s: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()
        self._waiting: queue.Queue[Notice | None] = queue.Queue(MOST_WAITING)
        self._problems: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, notice: Notice) -> None:
        """Sends a notice soon, or counts it if one of its event was sent a moment ago."""
        if not self._recipients or notice.event not in self._events:
            return
        now_s = self._clock()
        last_s = self._last_s.get(notice.event)
        if notice.event not in ENDS and last_s is not None and now_s - last_s < self._at_least_s:
            self._left_out[notice.event] += 1
            return
        try:
            self._waiting.put_nowait(replace(notice, left_out=dict(self._left_out)))
        except queue.Full:
            self._left_out[notice.event] += 1
            return
        self._left_out.clear()
        self._last_s[notice.event] = now_s
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="notices", daemon=True)
            self._thread.start()

    def problems(self) -> list[str]:
        """Returns what could not be told since the last call, in sentences without secrets."""
        found = []
        while not self._problems.empty():
            found.append(self._problems.get_nowait())
        return found

    def close(self, wait_s: float = LAST_WORDS_S) -> None:
        """Waits until all is sent, for `wait_s` seconds at most; failed ones are tried once more,
        at once."""
        if self._thread is None:
            return
        self._hurry.set()
        deadline_s = time.monotonic() + wait_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=wait_s)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            left = self._waiting.qsize()
            self._problems.put(f"notices: not all were sent within {wait_s:g} s, {left} wait still")

    def _send_all(self) -> None:
        while (notice := self._waiting.get()) is not None:
            for recipient in self._recipients:
                self._send(recipient, notice)

    def _send(self, recipient: Recipient, notice: Notice) -> None:
        why = ""
        for tries, wait_s in enumerate((0.0, *self._waits_s)):
            if tries > 1 and self._hurry.is_set():
                break
            self._hurry.wait(wait_s)
            try:
                recipient.send(notice)
                return
            except Exception as error:  # of urllib, smtplib, the system: all mean "not told"
                why = str(error) or type(error).__name__
        if recipient.secret:
            why = why.replace(recipient.secret, "***")
        self._problems.put(f"{recipient.name}: {notice.event} was not told: {why}")


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


END_WORDS = {
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
                case AlertEvent(category="mistake"):
                    text = f"trains with a mistake of the script: {event.fact or event.message}"
                    yield self._notice("mistake", text, event, attempt)
                case HangDetected():
                    text = f"hangs: {next(iter(event.evidence), 'no sign of life')}"
                    yield self._notice("hang", text, event, attempt)
                case RunFinished() if event.state in END_WORDS:
                    name, words = END_WORDS[event.state]
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
