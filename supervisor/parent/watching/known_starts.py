"""How long the starts of a run take, learnt from the attempts before."""

from __future__ import annotations

from supervisor.parent.watching.watchdog import Watchdog


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
