"""A line at the terminal from time to time while no step can be seen yet."""

from __future__ import annotations

import time
from collections.abc import Callable

from supervisor.parent.watching.rank_watch import GroupFeed
from supervisor.storage.run.mailboxes import describe_replay, replayed_steps
from supervisor.storage.run.rundir import RunDirectory

_TELL_AFTER_S, _TELL_EVERY_S = 2.0, 15.0
"""Of a fast-forward, and of ranks that others wait for; shorter waits nobody asks about."""
_NAMED = 8
"""Most ranks that a line names."""


class FirstStepLines:
    """Of one attempt.

    Args:
        first_rank: whose fast-forward is told.
        target: step of the checkpoint that it goes to; None without one.
        say: writes a line.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        feed: GroupFeed,
        first_rank: int,
        target: int | None,
        say: Callable[[str], None],
    ) -> None:
        self._rundir, self._feed, self._first_rank = rundir, feed, first_rank
        self._target, self._say = target, say
        self._began = time.time()
        self._tell_at_s = time.monotonic() + _TELL_AFTER_S
        self._replay_from: tuple[int, float] | None = None

    def look(self, now_s: float) -> None:
        """Called about once a second, with the time of `time.monotonic`."""
        if self._feed.last_step is not None:
            return
        done = None
        if self._target is not None:
            done = replayed_steps(self._rundir.replayed(self._first_rank), self._began)
        if done and self._replay_from is None:
            self._replay_from = done, now_s
            return  # at the next look it is known what a step takes
        if now_s < self._tell_at_s:
            return
        line = ""
        if self._target is not None and done is not None and done < self._target:
            first, first_s = self._replay_from or (done, now_s)
            step_s = (now_s - first_s) / (done - first) if done > first else 0.0
            line = describe_replay(done, self._target, time.time() - self._began, step_s)
        elif behind := self._feed.behind():
            named = f"rank{'s' * (len(behind) > 1)} {', '.join(map(str, behind[:_NAMED]))}"
            more = f" and {len(behind) - _NAMED} more" if len(behind) > _NAMED else ""
            line = f"waiting for {named}{more}: the other ranks have made their first step"
        if line:
            self._tell_at_s = now_s + _TELL_EVERY_S
            self._say(line)
