"""Tells a worker that hangs from one that is slow, starts slowly, or cannot be ended."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable

from supervisor.settings import WatchdogSettings

# Imported compilers, warm caches and the first batches make the first steps slow.
WARM_UP_STEPS = 10
WARM_UP_S = 300.0
RANKS_AGAIN_S = 120.0
"""Instead, where several ranks start anew as they have started before: one that the others do not
meet (a port that another program has taken meanwhile) waits, and nobody computes."""
WINDOW = 200
SHORTEST_S = 60.0
FACTOR = 10.0
QUANTILE = 0.99
# A worker that computes without a step may be evaluating or preparing data with code that gives no
# sign of life: it is given longer than one that waits. A loop without end is still found.
BUSY_FACTOR = 10.0
BUSY_SHARE = 0.5
# At a start even a little work is life (a data set read over a network); a wait for a lock or a
# dead peer takes none.
START_BUSY_SHARE = 0.05


class Watchdog:
    """Decides from the times of steps and other signs of life whether a worker hangs.

    Pure: the caller brings the clock. A thread that beats inside the worker is no sign of life,
    because it goes on while the training waits for a lock or a dead peer; progress is: a step, a
    batch loaded, an evaluation's forward, a checkpoint written.
    """

    def __init__(
        self,
        settings: WatchdogSettings,
        *,
        started_s: float,
        known_start_s: float | None = None,
        warm_up_s: float = WARM_UP_S,
    ) -> None:
        """
        Args:
            settings: of the run.
            started_s: when the process was started, on any monotonic clock.
            known_start_s: the longest silence before the first step in earlier attempts; None if
                nothing is known (`KnownStarts`).
            warm_up_s: the least silence that counts as a hang at a start and in the first steps.
        """
        self._settings = settings
        self._known_start_s = known_start_s
        self._warm_up_s = warm_up_s
        self._last_sign_s = started_s
        self._cpu_s = 0.0
        self._cpu_at_sign_s = 0.0
        self._all_cpu_s = 0.0
        self._all_cpu_at_sign_s = 0.0
        self._longest_start_s = 0.0
        self._next_look_s = 0.0
        self._last_step_s: float | None = None
        self._started_s = started_s
        self._steps = 0
        self._is_starting_again = False
        self._step_times_s: deque[float] = deque(maxlen=WINDOW)

    def saw_steps(self, count: int, now_s: float) -> None:
        """Takes in `count` new steps seen at `now_s`, since the last call with steps."""
        if count <= 0:
            return
        if self._last_step_s is not None:
            # One entry for each poll is enough: of many steps in one poll none was slow.
            self._step_times_s.append((now_s - self._last_step_s) / count)
        self._last_step_s = now_s
        self.saw_sign_of_life(now_s)
        self._steps += count

    def saw_sign_of_life(self, now_s: float) -> None:
        """Takes in that the worker did something that is not a step, at `now_s`."""
        if self._steps == 0:
            self._longest_start_s = max(self._longest_start_s, now_s - self._last_sign_s)
        self._last_sign_s = now_s
        self._next_look_s = 0.0
        self._cpu_at_sign_s = self._cpu_s
        self._all_cpu_at_sign_s = self._all_cpu_s

    def starts_again(self, is_starting: bool, now_s: float) -> None:
        """Takes in whether a rank is on its way back, for which the others wait: its silence may
        last as long as at a start."""
        if is_starting != self._is_starting_again:
            self._is_starting_again = is_starting
            self.saw_sign_of_life(now_s)

    def saw_cpu_time(self, cpu_s: float, all_cpu_s: float | None = None) -> None:
        """Takes in the processor time that the worker has used so far, and that of its descendants
        too, which count at a start: later they may be loaders that work ahead of a hung training.
        """
        self._cpu_s = cpu_s
        self._all_cpu_s = cpu_s if all_cpu_s is None else all_cpu_s

    @property
    def start_silence_s(self) -> float | None:
        """The longest silence before this attempt's first step; None before that step."""
        return self._longest_start_s if self._steps else None

    def timeout_s(self, now_s: float) -> float:
        """Returns how long silence may last; a timeout that the user set is meant as it is."""
        settings = self._settings
        if self._steps == 0 or self._is_starting_again:
            return self._start_timeout_s(now_s)
        if settings.hang_timeout_s is not None:
            return settings.hang_timeout_s
        usual_s = max(SHORTEST_S, FACTOR * self._slow_step_s())
        if self._steps < WARM_UP_STEPS:
            usual_s = max(usual_s, min(self._warm_up_s, settings.first_step_timeout_s))
        return usual_s * BUSY_FACTOR if self._is_busy(now_s) else usual_s

    def silent_s(self, now_s: float) -> float:
        """Returns the seconds since the last sign of life."""
        return now_s - self._last_sign_s

    def since_step_s(self, now_s: float) -> float:
        """Returns the seconds since the last step, or since the start without one."""
        return now_s - (self._started_s if self._last_step_s is None else self._last_step_s)

    def is_hanging(self, now_s: float) -> bool:
        return self.silent_s(now_s) > max(self.timeout_s(now_s), self._next_look_s)

    def found_elsewhere(self, now_s: float) -> float:
        """Called where the stacks show that no training is under way: it may have ended, or go on
        later, so they are looked at again after as long a silence.

        Returns:
            How long silence may last there, in all.
        """
        limit_s = self._settings.idle_timeout_s
        if self._all_cpu_s - self._all_cpu_at_sign_s > BUSY_SHARE * self.silent_s(now_s):
            limit_s *= BUSY_FACTOR
        self._next_look_s = min(2.0 * self.silent_s(now_s), limit_s)
        return limit_s

    def reason(self, now_s: float) -> str:
        """Returns one sentence on why the worker counts as hung at `now_s`."""
        what = "no step" if self._steps else "no first step"
        limit = f"(limit {self.timeout_s(now_s):.0f} s)"
        silent_s, since_s = self.silent_s(now_s), self.since_step_s(now_s)
        if since_s - silent_s < 1.0:
            return f"{what} for {since_s:.0f} s {limit}"
        return f"{what} for {since_s:.0f} s, no sign of life for {silent_s:.0f} s {limit}"

    def _start_timeout_s(self, now_s: float) -> float:
        """Returns how long silence may last before the first step.

        A first start has no measure: imports, data and compilation may take any time, and the
        setting says how long. A later one does again what an earlier one did on this machine, or
        less. One that uses no processor, and is silent ten times as long as any before, hangs.
        """
        settings = self._settings
        known_s = self._known_start_s
        if self._is_starting_again:
            known_s = max(known_s or 0.0, self._longest_start_s)
        work_s = self._all_cpu_s - self._all_cpu_at_sign_s
        if known_s is None or work_s > START_BUSY_SHARE * self.silent_s(now_s):
            return settings.first_step_timeout_s
        least_s = self._warm_up_s if settings.hang_timeout_s is None else settings.hang_timeout_s
        return min(settings.first_step_timeout_s, max(least_s, FACTOR * known_s))

    def _is_busy(self, now_s: float) -> bool:
        return self._cpu_s - self._cpu_at_sign_s > BUSY_SHARE * self.silent_s(now_s)

    def _slow_step_s(self) -> float:
        if not self._step_times_s:
            return 0.0
        ordered = sorted(self._step_times_s)
        return ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))]


class KnownStarts:
    """What one parent has seen of the starts of its attempts.

    Another parent (`supervisor resume`) starts without them, since it may be on another machine.
    """

    def __init__(self) -> None:
        self.longest_silence_s: float | None = None

    def attempt_ended(self, watchdog: Watchdog, *, hung: bool) -> None:
        """Called after each attempt.

        After an attempt that was ended as hung before its first step, the next one gets the whole
        `first_step_timeout_s` again, in case it was only slow.
        """
        silence_s = watchdog.start_silence_s
        if silence_s is not None:
            self.longest_silence_s = max(silence_s, self.longest_silence_s or 0.0)
        elif hung:
            self.longest_silence_s = None


LEFT_BEHIND_AFTER_S = 60.0
"""A dump of a large process's memory, or the end of a GPU's context, may take seconds."""


class Unkillable:
    """Knows since when SIGKILL should have ended all. Pure: the caller brings the clock."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def is_there(self, signals_sent: Iterable[Iterable[int]], now_s: float) -> bool:
        """Returns whether a process that still lives is waited for no longer.

        Args:
            signals_sent: to each of those that were started.
            now_s: on any monotonic clock.
        """
        if self._since_s is None:
            if any(signal.SIGKILL in sent for sent in signals_sent):
                self._since_s = now_s
            return False
        return now_s - self._since_s > LEFT_BEHIND_AFTER_S
