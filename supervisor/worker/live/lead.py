"""Which optimizer leads, and when a step is over."""

from __future__ import annotations

from torch.optim import Optimizer

from supervisor.actions.controls import Controls
from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.ground.boundary_clock import BoundaryClock
from supervisor.worker.ground.progress import Progress
from supervisor.worker.treatment.dispatcher import Dispatcher


class Lead:
    """The updates of the lead count as steps; what others do belongs to its step.

    Args:
        of_ranks: see `BoundaryClock`.

    Attributes:
        clock: knows the lead and when a boundary is due; a resume hands on that of its replay.
    """

    def __init__(
        self, progress: Progress, new_trainings: NewTrainings, *, of_ranks: bool = False
    ) -> None:
        self.clock = BoundaryClock(of_ranks=of_ranks)
        self._progress = progress
        self._new_trainings = new_trainings

    def leads(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` is the lead, or becomes it with this update."""
        clock, progress = self.clock, self._progress
        is_lead = clock.is_lead(optimizer)
        if clock.is_new_lead:
            clock.is_new_lead = False
            progress.probe.begins_training = clock.is_new_training
            self._new_trainings.begins(progress.steps_done, has_other_weights=clock.is_new_training)
        return is_lead

    def count_other(self, optimizer: Optimizer) -> None:
        """An update that is not the lead's; one of many in a row begins another training."""
        progress = self._progress
        if progress.probe.backward_calls:
            progress.probe.others_trained = True
        if self.clock.updated(optimizer):
            progress.probe.forget()
            progress.probe.begins_training = True
            self._new_trainings.begins(progress.steps_done, has_other_weights=True)


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
