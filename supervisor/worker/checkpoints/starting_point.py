"""The checkpoint that an attempt starts from, chosen and read before anything is built on it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

from supervisor.errors import CheckpointError
from supervisor.events.state_events import CheckpointRejected, WarningEvent
from supervisor.ranks import RankPlace
from supervisor.storage.checkpoints.checkpoint_files import write_section
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.parts import metas_of, part_of, ranks_of
from supervisor.storage.files.private_files import make_private
from supervisor.storage.run import healing_memory
from supervisor.storage.run.healing_memory import takes_dead_ranks_place
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.training_state.sharding.gathered import (
    GatheredState,
    check_digest,
    gather,
    read_all_ranks,
    read_rank_state,
)
from supervisor.training_state.snapshot import copy_state
from supervisor.worker.checkpoints.rank_memory import KEPT_BEGAN, KEPT_INTERVAL, kept_at
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.ranks.exchanges import CommonBeginning, common_beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """Where this attempt begins: a checkpoint with its state.

    Attributes:
        checkpoint: what this rank reads of it; a rank that it does not have, what the first reads.
        state: what this rank puts back; the first rank's if there is a `gathered` one.
        saved_by: how many ranks it is of.
        gathered: the state of all ranks, if another number of ranks saved it; else None.
        beginning: what these ranks had exchanged when they began to train; None if not known.
    """

    checkpoint: Checkpoint
    state: dict[str, Any]
    saved_by: int = 1
    gathered: GatheredState | None = None
    beginning: CommonBeginning | None = None

    @property
    def replay_offset(self) -> int:
        """How much of the replay log belongs to the checkpoint."""
        return max(0, int(self.checkpoint.meta.get("tape_offset", 0)))

    def check_digest(self) -> None:
        """What was read must be what lay in memory when the checkpoint was made.

        Raises:
            CheckpointDamaged: it changed before it was written, as in a faulty memory.
        """
        check_digest(self.checkpoint, self.state)


def find_starting_point(context: WorkerContext, ring: CheckpointRing) -> ResumePoint | None:
    """Returns the ordered checkpoint, or the next older one that can be loaded; None for nothing.

    What is left out on the way is in the journal. An abandoned state is taken only if it is the
    ordered one, and is abandoned no longer then. Called once, at the worker's start.
    """
    start = _find(context, ring)
    if context.place.is_first_rank and not takes_dead_ranks_place():
        with contextlib.suppress(CheckpointError):  # they stay what they are: for a person
            ring.leave_course(-1 if start is None else start.checkpoint.step)
    return start


def _find(context: WorkerContext, ring: CheckpointRing) -> ResumePoint | None:
    place, journal, step = context.place, context.journal, context.order.checkpoint_step
    if takes_dead_ranks_place():
        return _of_dead_rank(context.rundir, place)
    if step is None:
        return None
    found = ring.checkpoints()
    wanted = [c for c in [*found, *ring.abandoned()] if c.step == step]
    older = [c for c in found if c.step < step]
    for checkpoint in [*wanted, *reversed(older)]:
        try:
            ring.verify(checkpoint)
            if ranks_of(checkpoint) == place.world_size:
                start = _of_same_ranks(checkpoint, place)
            else:
                start = _of_other_ranks(checkpoint, place)
            if place.is_first_rank:
                with contextlib.suppress(CheckpointError):  # it is loaded, whatever it says
                    ring.adopt(checkpoint.step)
            return start
        except CheckpointError as error:
            journal.write(CheckpointRejected(step=checkpoint.step, reason=str(error)))
    journal.write(WarningEvent(message="no checkpoint can be loaded: starting from the beginning"))
    return None


def _of_dead_rank(rundir: RunDirectory, place: RankPlace) -> ResumePoint:
    """Returns what the rank of this process has kept in memory before it died.

    Raises:
        CheckpointError: it is not there.
        OSError: its record of files cannot be completed.
    """
    own = healing_memory.mine
    found = None if own is None else kept_at(own.kept, own.step)
    if found is None:
        raise CheckpointError("what the dead rank has kept in memory is gone")
    captured = found[1]
    meta = dict(captured.meta)
    interval, began = int(str(meta[KEPT_INTERVAL])), float(str(meta.pop(KEPT_BEGAN)))
    ScriptFiles(rundir, place.rank).begin_afterwards(interval, began)
    folder = rundir.root / "healed" / f"rank_{place.rank}"
    make_private(folder)
    for name, content in captured.sections.items():
        write_section(folder, name, content)
    checkpoint = Checkpoint(step=captured.step, path=folder, time=began, meta=meta)
    return ResumePoint(
        checkpoint=checkpoint, state=copy_state(captured.state), saved_by=place.world_size
    )


def _of_same_ranks(checkpoint: Checkpoint, place: RankPlace) -> ResumePoint:
    part = part_of(checkpoint, place.rank, place.world_size)
    state = read_rank_state(checkpoint, place)
    start = ResumePoint(
        checkpoint=part,
        state=state,
        saved_by=place.world_size,
        beginning=common_beginning(metas_of(checkpoint)),
    )
    start.check_digest()
    return start


def _of_other_ranks(checkpoint: Checkpoint, place: RankPlace) -> ResumePoint:
    """Reads the states of all ranks that saved it, each checked on its own.

    Raises:
        CheckpointError: one of them cannot be read, or they cannot be joined.
    """
    states = read_all_ranks(checkpoint)
    count, rank = len(states), min(place.rank, len(states) - 1)
    own = part_of(checkpoint, rank, count)
    if rank != place.rank:
        own = replace(own, meta={**own.meta, "tape_offset": 0})  # it has no replay log
    return ResumePoint(checkpoint=own, state=states[0], saved_by=count, gathered=gather(states))
