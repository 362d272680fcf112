"""What follows an update that was left out."""

from __future__ import annotations

from collections.abc import Collection

from supervisor.codes import DecisionSource
from supervisor.events.step_events import UpdateSkipped
from supervisor.storage.journal.journal import Journal
from supervisor.worker.corruption.look_requests import LookRequests
from supervisor.worker.ground.progress import Progress
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.treatment.healing import Healing


class SkippedUpdates:
    """Tells of it, finds the samples that were to blame, and heals what the forward has left.

    Args:
        by_order: steps whose updates the parent ordered to be left out.
    """

    def __init__(
        self,
        journal: Journal,
        progress: Progress,
        samples: SampleGuard,
        healing: Healing,
        looks: LookRequests,
        by_order: Collection[int] = (),
    ) -> None:
        self._by_order = frozenset(by_order)
        self._journal = journal
        self._progress = progress
        self._samples = samples
        self._healing = healing
        self._looks = looks

    def left_out(self, step: int, why: str) -> None:
        """Called when the update of `step` is left out."""
        source = DecisionSource.ORDER if step in self._by_order else None
        self._journal.write(UpdateSkipped(step=step, reason=why, source=source))
        self._samples.explain(self._progress.last_batch)
        self._healing.after_skip()
        self._looks.left_out(step)
