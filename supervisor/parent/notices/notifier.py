"""Sends notices on a thread of its own, so that no server can hold up the supervision."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.parent.notices.notice import Notice

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
