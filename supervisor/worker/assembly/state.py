"""The state of the training: live, in copies, and in checkpoints."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from supervisor.codes import Found
from supervisor.errors import CheckpointError
from supervisor.events.state_events import CheckpointRejected, StateFound
from supervisor.held_memory import BUFFER, PLACES, HeldMemory
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.kept_memory import PLACES as PLACES_OF_RANK
from supervisor.storage.steps.tape import TapeWriter
from supervisor.training_state.replicas import parameters_alike
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.assembly.ground import Ground, Task
from supervisor.worker.assembly.recorders import Recorders
from supervisor.worker.capture.checkpoint_writer import CheckpointWriter
from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.capture.follower_writer import FollowerWriter
from supervisor.worker.capture.lead_writer import LeadWriter
from supervisor.worker.capture.pre_treatment_checkpoint import PreTreatmentCheckpoint
from supervisor.worker.capture.save_interval import SaveInterval
from supervisor.worker.capture.script_census import ScriptCensus
from supervisor.worker.capture.single_writer import SingleWriter
from supervisor.worker.capture.split_replicas import SplitReplicas
from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.capture.whole_state import WholeState
from supervisor.worker.compute_check.compute_check import ComputeCheck
from supervisor.worker.corruption.look_requests import LookRequests
from supervisor.worker.corruption.update_watch import UpdateWatch
from supervisor.worker.live.checkpoint_listener import CheckpointListener
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
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
    writer = _build_writer(task, ground, ring, tape)
    ground.barrier(CheckpointListener.name, when_off=writer.saves_no_more)
    return Checkpointer(
        writer,
        task.settings.checkpoint,
        ground.group_journal,
        memory=memory,
        puts_off=task.place.is_alone,
        interval=SaveInterval(
            task.settings.checkpoint,
            time.monotonic(),
            failures=task.order.failures,
            trained_s=task.order.trained_s,
        ),
    )


def _build_writer(
    task: Task, ground: Ground, ring: CheckpointRing, tape: TapeWriter
) -> CheckpointWriter:
    place, attempt = task.place, task.attempt

    def sync() -> None:
        tape.sync()
        OUTSIDE.sync()

    if place.is_alone:
        return SingleWriter(ring, sync)
    if place.leads:
        replicas = SplitReplicas(
            ring=ring,
            schedule=ground.schedule,
            journal=ground.journal,
            warn=ground.warn,
            may_go_back=not task.policy.observe_only and task.order.retries < MOST_RETRIES,
        )
        return LeadWriter(ring, sync, place=place, attempt=attempt, on_split=replicas.found)
    return FollowerWriter(
        ring,
        sync,
        place=place,
        attempt=attempt,
        alike=lambda: parameters_alike(ground.registry.models),
    )


@dataclass(frozen=True, kw_only=True)
class State:
    """Who reads the state, copies it, and sees that only optimizers change it."""

    training: TrainingState
    held: UserTensors
    census: ScriptCensus
    whole: WholeState
    memory: HeldMemory
    snapshots: SnapshotRing
    checkpointer: Checkpointer
    pre_treatment: PreTreatmentCheckpoint
    watch: UpdateWatch
    compute: ComputeCheck
    looks: LookRequests


def build_state(task: Task, ground: Ground, ring: CheckpointRing, recorders: Recorders) -> State:
    training, held = TrainingState(ground.registry), UserTensors(ground.registry)
    files = recorders.files.replayed

    def training_begins() -> None:
        files.training_begins()
        if not task.place.is_alone:
            ground.exchanges.training_begins()

    census = ScriptCensus(ground.registry, ground.barrier, training_begins)
    memory = _build_memory(task, ground)
    checkpointer = build_checkpointer(task, ground, ring, recorders.tape, memory)
    whole = WholeState(
        state=training,
        held=held,
        census=census,
        registry=ground.registry,
        controls=ground.controls,
        tape=recorders.tape,
        loading=recorders.loading,
        files=files,
        recorder=recorders.recorder,
        progress=ground.progress,
        health=ground.health,
        exchanges=ground.exchanges,
        warn=ground.warn,
    )
    return State(
        training=training,
        held=held,
        census=census,
        whole=whole,
        memory=memory,
        snapshots=SnapshotRing(task.settings.snapshot, memory, checkpointer.before),
        checkpointer=checkpointer,
        pre_treatment=PreTreatmentCheckpoint(
            whole_state=whole.take,
            checkpointer=checkpointer,
            progress=ground.progress,
            run=task.rundir.root,
            warn=ground.warn,
        ),
        watch=UpdateWatch(ground.registry),
        compute=ComputeCheck(ground.registry, may_replace=lambda: not task.policy.observe_only),
        looks=LookRequests(ground.schedule),
    )


def _build_memory(task: Task, ground: Ground) -> HeldMemory:
    def tell(copies: int) -> None:
        step = ground.progress.steps_done
        ground.journal.write(StateFound(step=step, found=Found.COPIES_HELD, count=copies))

    return HeldMemory(
        task.settings.snapshot,
        most=task.order.most_copies,
        first={BUFFER: 1, **({PLACES: PLACES_OF_RANK} if task.kept and task.is_one_node else {})},
        ranks=task.place.local_world_size,
        tell=tell,
    )
