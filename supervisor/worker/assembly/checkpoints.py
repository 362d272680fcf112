"""The checkpoints of the run: the one to start from, and who writes the next ones."""

from __future__ import annotations

import contextlib

from supervisor.errors import CheckpointError
from supervisor.events.state_events import CheckpointRejected
from supervisor.held_memory import HeldMemory
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.storage.steps.tape import TapeWriter
from supervisor.training_state.replicas import parameters_alike
from supervisor.worker.assembly.ground import Ground
from supervisor.worker.assembly.task import Task
from supervisor.worker.capture.checkpoint_writer import CheckpointWriter
from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.capture.follower_writer import FollowerWriter
from supervisor.worker.capture.lead_writer import LeadWriter
from supervisor.worker.capture.single_writer import SingleWriter
from supervisor.worker.capture.split_replicas import SplitReplicas
from supervisor.worker.session.starting_point import ResumePoint, find_starting_point
from supervisor.worker.treatment.exact_retry import MOST as MOST_RETRIES


def build_ring(task: Task, journal: Journal) -> CheckpointRing:
    def rejected(checkpoint: Checkpoint, reason: str) -> None:
        journal.write(CheckpointRejected(step=checkpoint.step, reason=reason))

    return CheckpointRing(task.rundir.checkpoints, task.settings.checkpoint, on_rejected=rejected)


def find_start(task: Task, ring: CheckpointRing, journal: Journal) -> ResumePoint | None:
    """Returns where this attempt begins; None for the script's beginning."""
    start = find_starting_point(task.order, ring, journal, task.place)
    if task.place.leads:
        with contextlib.suppress(CheckpointError):  # they stay what they are: for a person alone
            ring.leave_course(-1 if start is None else start.checkpoint.step)
    return start


def build_checkpointer(
    task: Task, ground: Ground, ring: CheckpointRing, tape: TapeWriter, memory: HeldMemory
) -> Checkpointer:
    return Checkpointer(
        _build_writer(task, ground, ring, tape),
        task.settings.checkpoint,
        ground.group_journal,
        memory=memory,
        puts_off=task.place.is_alone,
    )


def _build_writer(
    task: Task, ground: Ground, ring: CheckpointRing, tape: TapeWriter
) -> CheckpointWriter:
    place, attempt = task.place, task.attempt
    if place.is_alone:
        return SingleWriter(ring, tape.sync)
    if place.leads:
        replicas = SplitReplicas(
            ring=ring,
            schedule=ground.schedule,
            journal=ground.journal,
            warn=ground.warn,
            may_go_back=not task.policy.observe_only and task.order.retries < MOST_RETRIES,
        )
        return LeadWriter(ring, tape.sync, place=place, attempt=attempt, on_split=replicas.found)
    return FollowerWriter(
        ring,
        tape.sync,
        place=place,
        attempt=attempt,
        alike=lambda: parameters_alike(ground.registry.models),
    )
