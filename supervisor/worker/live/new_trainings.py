"""What is forgotten when another training begins."""

from __future__ import annotations

from supervisor.actions.controls import Controls
from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.treatment.dispatcher import Dispatcher

TOLD = 20
"""A meta-learner begins another training in each iteration: only so many are reported."""


class NewTrainings:
    """Forgets what belongs to the last training when another optimizer takes over."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        snapshots: SnapshotRing,
        controls: Controls,
        journal: Journal,
    ) -> None:
        self._dispatcher = dispatcher
        self._snapshots = snapshots
        self._controls = controls
        self._journal = journal
        self._count = 1

    def begins(self, step: int, *, has_other_weights: bool) -> None:
        """Another optimizer leads from `step` on; snapshots hold the state of the one before."""
        self._snapshots.clear()
        if not has_other_weights:
            return
        self._dispatcher.begin_another_training()
        self._controls.lr_share = 1.0
        self._count += 1
        if self._count <= TOLD:
            self._journal.write(StateFound(step=step, found=Found.ANOTHER_TRAINING))
