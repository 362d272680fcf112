"""Orders the exact retries that a worker asks for (`worker/treatment/exact_retry.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from supervisor.codes import ExitSign, Found
from supervisor.events.event import JournalEvent
from supervisor.events.state_events import StateFound
from supervisor.parent.restarts.starting_point import Checkpoints
from supervisor.records import WorkerExit, WorkerOrder


class ExactRetries:
    """A retry is no crash: it is not counted, and begins with no careful settings."""

    def __init__(self) -> None:
        self._asked: StateFound | None = None

    def saw(self, events: Iterable[JournalEvent]) -> None:
        """Takes note of the worker's events, as they are merged."""
        for event in events:
            match event:
                case StateFound(found=Found.RETRY_ASKED):
                    self._asked = event

    def order(
        self, order: WorkerOrder, worker_exit: WorkerExit, checkpoints: Checkpoints
    ) -> WorkerOrder | None:
        """Returns the order of the retry; None if the attempt did not end for one, or if its
        checkpoint cannot be used.

        Args:
            order: of the attempt that has ended.
        """
        asked, self._asked = self._asked, None
        if worker_exit.sign is not ExitSign.EXACT_RETRY or asked is None:
            return None
        if asked.step is None or asked.before_step is None:
            return None
        start = checkpoints.newest_verified(asked.before_step + 1)
        if start is None:
            return None
        return replace(
            order,
            attempt=order.attempt + 1,
            checkpoint_step=start.step,
            reason=f"the newest from before the trouble, to compute step {asked.step} again",
            retry_until=asked.step,
            retry_of=order.attempt,
            retries=order.retries + 1,
        )
