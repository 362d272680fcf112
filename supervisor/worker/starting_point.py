"""The checkpoint that an attempt starts from, chosen and read before anything is built on it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.events.state_events import CheckpointRejected, WarningEvent
from supervisor.ranks import RankPlace
from supervisor.records import WorkerOrder
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.parts import part_of
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.state import digest
from supervisor.worker.capture.rank_state import read_rank_state


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where this attempt begins: a checkpoint with its state."""

    checkpoint: Checkpoint
    state: dict[str, Any]

    @property
    def tape_offset(self) -> int:
        """How much of the tape belongs to the checkpoint."""
        return max(0, int(self.checkpoint.meta.get("tape_offset", 0)))

    def check_digest(self) -> None:
        """What was read must be what lay in memory when the checkpoint was made.

        Raises:
            CheckpointDamaged: it changed before it was written, as in a faulty memory.
        """
        stated = self.checkpoint.meta.get("digest")
        if stated is not None and digest(self.state) != stated:
            raise CheckpointDamaged(
                f"{self.checkpoint.path}: its state is not the one that was copied: use an older "
                "checkpoint, and check this machine's memory"
            )


def find_starting_point(
    order: WorkerOrder, ring: CheckpointRing, journal: Journal, place: RankPlace
) -> ResumePoint | None:
    """Returns the ordered checkpoint, or the next older one that can be loaded; None for nothing.

    What is left out on the way is in the journal. An abandoned state is taken only if it is the
    ordered one, and is abandoned no longer then. Called once, at the worker's start.
    """
    step = order.checkpoint_step
    if step is None:
        return None
    found = ring.checkpoints()
    wanted = [c for c in [*found, *ring.abandoned()] if c.step == step]
    older = [c for c in found if c.step < step]
    for checkpoint in [*wanted, *reversed(older)]:
        try:
            ring.verify(checkpoint)
            part = part_of(checkpoint, place.rank, place.world_size)
            start = ResumePoint(checkpoint=part, state=read_rank_state(checkpoint, place))
            start.check_digest()
            if place.leads:
                with contextlib.suppress(CheckpointError):  # it is loaded, whatever it says
                    ring.adopt(checkpoint.step)
            return start
        except CheckpointError as error:
            journal.write(CheckpointRejected(step=checkpoint.step, reason=str(error)))
    journal.write(WarningEvent(message="no checkpoint can be loaded: starting from the beginning"))
    return None
