"""Ranks that are silent: whether they hang, and how those that do are ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from supervisor.parent.attempt_context import AttemptContext, Guards
from supervisor.parent.process.process import Processes
from supervisor.parent.watching import hang
from supervisor.parent.watching.place_of_silence import Patience
from supervisor.parent.watching.rank_watch import RankWatch
from supervisor.parent.watching.watchdog import RANKS_AGAIN_S, WARM_UP_S, Watchdog


class SilentRanks:
    """Of one attempt.

    Args:
        take_steps: takes in the steps that are new, and returns how many rows there were.

    Attributes:
        watchdog: begun when the ranks were started.
        hang: why they were ended; None while nothing hangs.
        hung_rank: the one that hangs; None in a training of one process.
    """

    def __init__(
        self,
        context: AttemptContext,
        number: int,
        watches: Sequence[RankWatch],
        guards: Guards,
        take_steps: Callable[[], int],
    ) -> None:
        self._s, self._number, self._watches = context, number, watches
        self._guards, self._take_steps = guards, take_steps
        ranks = [watch.rank for watch in watches]
        self._patience = Patience(context.rundir, number, ranks, context.run_log.say)
        # Several ranks that start as they have started before.
        is_again = context.agent is not None and context.starts.longest_silence_s is not None
        self.watchdog = Watchdog(
            context.spec.settings.watchdog,
            started_s=time.monotonic(),
            known_start_s=context.starts.longest_silence_s,
            warm_up_s=RANKS_AGAIN_S if is_again else WARM_UP_S,
        )
        self.hang: str | None = None
        self.hung_rank: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether they stood behind all loops that have trained."""
        return self._patience.is_over

    def is_hang_of(self, rank: int) -> bool:
        """Whether `rank` is to blame, as far as is known."""
        return self.hung_rank in (None, rank)

    def take_steps(self) -> None:
        """Takes in the steps that are new."""
        self.watchdog.saw_steps(self._guards("steps", self._take_steps) or 0, time.monotonic())

    def not_back(self, rank: int) -> None:
        """A rank that was started alone takes too long."""
        if self.hang is None:
            self.hang, self.hung_rank = "started alone, it was not back in time", rank

    def treat(self, process: Processes, last_step: int | None, *, is_completed: bool) -> None:
        """Called when the watchdog says that they hang: looks where they stand, and ends them if
        nothing moves and they may not wait there.

        Args:
            is_completed: all of them have come to their end.
        """
        s, watchdog, now_s = self._s, self.watchdog, time.monotonic()
        reason = watchdog.reason(now_s)
        evidence = hang.dump_stacks(
            process,
            s.spec.settings.watchdog,
            s.rundir,
            self._number,
            self._watches,
            is_back=self._is_back,
        )
        may_wait = self._guards(
            "place",
            lambda: self._patience.may_wait(
                watchdog,
                now_s,
                awaits_input=s.stdin is not None and s.stdin.is_awaited,
                is_completed=is_completed,
            ),
        )
        if evidence is not None and may_wait:
            return
        if evidence is None:
            stacks = s.rundir.stacks(self._number, self._watches[0].rank)
            s.run_log.warn(f"the training goes on after a silence: {reason}; see {stacks}")
            return
        if self.is_over:
            reason = f"the training is over, but its process did not end by itself: {reason}"
        blamed = f"; {evidence.why}" if evidence.why else ""
        self.hang = reason + blamed + "".join(f"; in {frame}" for frame in evidence.frames[:1])
        self.hung_rank = evidence.rank
        s.run_log.hang_detected(
            reason,
            evidence,
            step=last_step,
            since_step_s=watchdog.since_step_s(now_s),
            limit_s=watchdog.timeout_s(now_s),
        )
        hang.end_hung(process)
        process.send(signal.SIGKILL)
        process.wait(hang.GRACE_S)

    def _is_back(self) -> bool:
        count = self._guards("steps", self._take_steps) or 0
        now_s = time.monotonic()
        self.watchdog.saw_steps(count, now_s)
        lives = count > 0 or any(watch.life.has_moved() for watch in self._watches)
        if lives:
            self.watchdog.saw_sign_of_life(now_s)
        return lives
