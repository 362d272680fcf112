"""How long the starts of a run take, learnt from the attempts before."""

from __future__ import annotations

from supervisor.parent.watching.watchdog import Watchdog


class KnownStarts:
    """What one parent has seen of the starts of its attempts.

    Another parent (`supervisor resume`) begins without: it may be on another machine, where data
    are copied and kernels compiled anew.
    """

    def __init__(self) -> None:
        self.longest_silence_s: float | None = None

    def attempt_ended(self, watchdog: Watchdog, *, hung: bool) -> None:
        """Called after each attempt.

        An attempt that was ended as hung before its first step gives the next one its whole time
        again (`first_step_timeout_s`): should it have been alive after all, that cost one attempt
        and not the run.
        """
        silence_s = watchdog.start_silence_s
        if silence_s is not None:
            self.longest_silence_s = max(silence_s, self.longest_silence_s or 0.0)
        elif hung:
            self.longest_silence_s = None
