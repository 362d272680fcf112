"""Signals that the supervisor is sent: passed on to the ranks, each as it came."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from supervisor.parent.attempt_context import AttemptContext
from supervisor.parent.process.process import Processes
from supervisor.parent.process.signals import GRACIOUS, TOGETHER_S, Request
from supervisor.parent.watching.rank_watch import GroupFeed, RankWatch
from supervisor.storage.run.mailboxes import arrived_at


class PassedSignals:
    """Of one attempt.

    Attributes:
        kill_at_s: when the ranks are ended, in the time of `time.monotonic`; None while they may
            train on.
    """

    def __init__(
        self, context: AttemptContext, watches: Sequence[RankWatch], feed: GroupFeed
    ) -> None:
        self._s, self._watches, self._feed = context, watches, feed
        self.kill_at_s: float | None = None

    def heed(self, process: Processes, now_s: float) -> None:
        """Passes on those that have come. Where the sender waits for the end, or the script has
        no handler, the worker saves and ends at its next boundary, or is ended after a while."""
        inbox = self._s.inbox
        grace_s = self._s.spec.settings.watchdog.grace_s
        for request in inbox.unheeded():
            is_handled = self._forward(process, request)
            if is_handled:
                request.passed_on_s = time.time()
            elif self.kill_at_s is None:
                self.kill_at_s = now_s + grace_s
            self._s.run_log.signal_received(
                request.signum, self._feed.last_step, None if is_handled else grace_s
            )
        if self.kill_at_s is not None and (inbox.is_forced or now_s >= self.kill_at_s):
            process.send(signal.SIGKILL)

    def _forward(self, process: Processes, request: Request) -> bool:
        """Sends a signal to the ranks that have not got it already; returns whether the script
        handles it, and may train on."""
        signum, since_s = request.signum, request.at_s - TOGETHER_S
        have_it = [
            watch.rank
            for watch in self._watches
            if arrived_at(self._s.rundir.signals(watch.rank), signum) >= since_s
        ]
        before = {rank: len(sent) for rank, sent in process.signals_sent.items()}
        process.send(signum, but=have_it)
        sent = [
            number
            for rank, numbers in process.signals_sent.items()
            for number in numbers[before.get(rank, 0) :]
        ]
        is_taken = bool(sent or have_it) and all(number == signum for number in sent)
        return signum not in GRACIOUS and is_taken
