"""How this attempt comes to where it begins."""

from __future__ import annotations

from supervisor.pipeline import Pipeline
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.run.meeting_place import MeetingPlace
from supervisor.worker.assembly.boundary import BuiltBoundary
from supervisor.worker.assembly.ground import Ground
from supervisor.worker.assembly.recorders import Recorders
from supervisor.worker.assembly.state import State
from supervisor.worker.assembly.task import Task
from supervisor.worker.assembly.treatment import Treatment
from supervisor.worker.group.agreement import Agreement
from supervisor.worker.live.monitor import Monitor
from supervisor.worker.session.arrival import Arrival
from supervisor.worker.session.resumption import Resumption
from supervisor.worker.session.starting_point import ResumePoint
from supervisor.worker.session.state_restorer import StateRestorer
from supervisor.worker.treatment.ordered_treatments import OrderedTreatments


def build_restorer(
    task: Task, ground: Ground, state: State, pipeline: Pipeline, ordered: OrderedTreatments
) -> StateRestorer:
    """Who puts the state of a checkpoint back."""
    return StateRestorer(
        state=state.training,
        held=state.held,
        census=state.census,
        registry=ground.registry,
        controls=ground.controls,
        ordered=ordered,
        pipeline=pipeline,
        barrier=ground.barrier,
        fp32=task.order.fp32,
    )


def build_arrival(
    task: Task,
    ground: Ground,
    ring: CheckpointRing,
    recorders: Recorders,
    restorer: StateRestorer,
    agreement: Agreement,
    treatment: Treatment,
    live: BuiltBoundary,
    monitor: Monitor,
) -> Arrival:
    """What happens where a replay has arrived at its checkpoint."""
    return Arrival(
        attempt=task.attempt,
        place=task.place,
        order=task.order,
        restorer=restorer,
        agreement=agreement,
        files=recorders.files,
        ring=ring,
        ordered=treatment.ordered,
        progress=ground.progress,
        monitor=monitor,
        boundary=live.boundary,
        recorded=live.recorded,
        retry=treatment.retry,
        trial=treatment.trial,
        journal=ground.journal,
    )


def build_resumption(
    task: Task,
    ground: Ground,
    start: ResumePoint | None,
    recorders: Recorders,
    state: State,
    arrival: Arrival,
) -> Resumption:
    """The way from the script's beginning to there."""
    return Resumption(
        start,
        is_enabled=task.settings.fast_forward.enabled,
        tape=task.rundir.tape(task.rank),
        interception=ground.interception,
        registry=ground.registry,
        progress=ground.progress,
        loading=recorders.loading,
        files=recorders.files,
        heartbeat=recorders.heartbeat,
        census=state.census,
        journal=ground.journal,
        warn=ground.warn,
        arrival=arrival,
        barrier=_build_barrier(task) if start is not None else None,
        exchanges=ground.exchanges,
    )


def _build_barrier(task: Task) -> MeetingPlace | None:
    """Where the ranks of a replay wait for each other; a mapped file is one node's alone."""
    place = task.place
    if place.is_alone or not task.is_one_node:
        return None
    path = task.rundir.board(task.attempt, place.node).with_suffix(".replay")
    try:
        return MeetingPlace(path, place.local_rank, place.local_world_size)
    except OSError:
        return None
