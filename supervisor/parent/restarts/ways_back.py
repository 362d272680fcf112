"""How an attempt returns to its checkpoint, and what is tried if it does not get there.

An attempt that ends before that has trained nothing, so it is no crash of the training: the next
one tries another way. No way is tried twice, so this ends.
"""

from __future__ import annotations

from supervisor.parent.restarts.restart_policy import MEMORY
from supervisor.records import LOADS_ALL, REPLAY, ExitCause, WorkerExit
from supervisor.settings import FastForwardSettings

START = "start"
_FROM_OUTSIDE = (ExitCause.KILLED, ExitCause.HANG, *MEMORY)
_DESCRIBED = {
    LOADS_ALL: "by another fast-forward, with all batches loaded",
    "approximate": "approximately: state put back, the script's loop from its top",
    START: "from the start",
}


class WaysBack:
    """Which way the next attempt takes; one object lives as long as the run in this parent.

    Args:
        settings: the order of the ways.
        kills: ends from outside (killed, hung, out of memory) that a way may have.
        few_steps: a checkpoint of at most this many steps is not worth an approximate resume.
        way: taken by the last attempt of an earlier parent.
    """

    def __init__(
        self, settings: FastForwardSettings, *, kills: int, few_steps: int, way: str = REPLAY
    ) -> None:
        self.way = way
        self._left = [one for one in settings.fallbacks if one in ("approximate", START)]
        if way in self._left:
            del self._left[: self._left.index(way) + 1]
        self._kills = kills
        self._few_steps = few_steps
        self._killed = 0

    def arrived(self) -> None:
        """Notes that the way worked: ends from outside are counted anew."""
        self._killed = 0

    def load_all(self) -> str:
        """Returns the way after an attempt that needed what it had not loaded, for good."""
        self.way = LOADS_ALL
        return self.way

    def next(self, worker_exit: WorkerExit, checkpoint_step: int) -> str | None:
        """Returns the way after an attempt that did not arrive; `START`: from the script's start.

        None if there is no other way: the end is then judged like any other.
        """
        if worker_exit.cause in _FROM_OUTSIDE:
            # A silence is more often this way's own than the network's, and costs minutes.
            self._killed += 2 if worker_exit.cause is ExitCause.HANG else 1
            if self._killed < self._kills:
                return self.way
        self._killed = 0
        if not self._left:
            return None
        if self._left[0] == "approximate" and self._starts_cheaper(checkpoint_step):
            return START
        if self._left[0] == START:
            return START
        self.way = self._left.pop(0)
        return self.way

    def _starts_cheaper(self, checkpoint_step: int) -> bool:
        return START in self._left and checkpoint_step <= self._few_steps


def describe(attempt: int, worker_exit: WorkerExit, checkpoint_step: int, way: str) -> str:
    """Returns why the next attempt takes this way, in one sentence."""
    evidence = worker_exit.evidence[0] if worker_exit.evidence else worker_exit.cause.value
    then = "the next one tries the same again"
    if way in _DESCRIBED:
        then = f"the next one goes on {_DESCRIBED[way]}"
    return (
        f"attempt {attempt} ended before it came back to step {checkpoint_step}, which does not "
        f"count as a crash of the training ({evidence}): {then}"
    )
