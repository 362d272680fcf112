"""What follows an update that was left out."""

from __future__ import annotations

from supervisor.storage.journal.journal import Journal
from supervisor.worker.ground.progress import Progress
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.treatment.healing import Healing


class SkippedUpdates:
    """Tells of it, finds the samples that were to blame, and heals what the forward has left."""

    def __init__(
        self, journal: Journal, progress: Progress, samples: SampleGuard, healing: Healing
    ) -> None:
        self._journal = journal
        self._progress = progress
        self._samples = samples
        self._healing = healing

    def left_out(self, step: int, why: str) -> None:
        """Called when the update of `step` is left out."""
        self._journal.write("update_skipped", step=step, reason=why)
        self._samples.explain(self._progress.last_batch)
        self._healing.after_skip()
