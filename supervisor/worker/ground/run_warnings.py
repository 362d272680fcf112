"""Warnings of this worker, with the step at which they come."""

from __future__ import annotations

from supervisor.codes import Warned
from supervisor.events.event import JournalEvent
from supervisor.events.state_events import WarningEvent
from supervisor.storage.journal.journal import Journal
from supervisor.worker.ground.progress import Progress


class RunWarnings:
    """Called with a message: writes it to the journal of this rank."""

    def __init__(self, journal: Journal, progress: Progress) -> None:
        self._journal = journal
        self._progress = progress

    def write(self, event: JournalEvent) -> bool:
        """Writes any other event; returns as `Journal.write`."""
        return self._journal.write(event)

    def __call__(self, message: str, *, aloud: bool = False, found: Warned | None = None) -> None:
        """`aloud`: the parent tells it at the terminal too. `found`: a code for readers."""
        step = self._progress.steps_done
        self._journal.write(WarningEvent(step=step, message=message, aloud=aloud, found=found))
