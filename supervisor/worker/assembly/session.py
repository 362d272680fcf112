"""How this attempt comes to where it begins, and who is asked from outside: by torch's patched
functions, the process and the script."""

from __future__ import annotations

from supervisor.pipeline import Pipeline
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.run.meeting_place import MeetingPlace
from supervisor.worker.assembly.boundary import BuiltBoundary
from supervisor.worker.assembly.ground import Ground, Task
from supervisor.worker.assembly.group import Group
from supervisor.worker.assembly.recorders import Recorders
from supervisor.worker.assembly.state import State
from supervisor.worker.assembly.treatment import Judging, Treatment
from supervisor.worker.group.agreement import Agreement
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.live.monitor import Monitor
from supervisor.worker.live.parting_checkpoint import PartingCheckpoint
from supervisor.worker.process.collective_count import CollectiveCount
from supervisor.worker.process.collective_records import CollectiveRecords
from supervisor.worker.session.arrival import Arrival
from supervisor.worker.session.ending import Ending
from supervisor.worker.session.resumption import Resumption
from supervisor.worker.session.session import Session
from supervisor.worker.session.several_ranks import SeveralRanks
from supervisor.worker.session.starting_point import ResumePoint
from supervisor.worker.session.state_restorer import StateRestorer
from supervisor.worker.session.user_api import UserApi
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


def build_ending(
    ground: Ground,
    recorders: Recorders,
    state: State,
    group: Group,
    judging: Judging,
    treatment: Treatment,
    experiment: Experiment | None,
    live: BuiltBoundary,
    monitor: Monitor,
) -> Ending:
    return Ending(
        registry=ground.registry,
        pipeline=judging.pipeline,
        progress=ground.progress,
        health=ground.health,
        agreement=group.agreement,
        journal=ground.journal,
        monitor=monitor,
        dispatcher=treatment.dispatcher,
        experiment=experiment,
        samples=recorders.samples,
        probes=judging.probes,
        model_scene=judging.model_scene,
        parting=live.parting,
        compute=live.compute,
        saving=ground.barrier(live.parting.name),
        checkpointer=state.checkpointer,
        tape=recorders.tape,
        script_files=recorders.files.record,
    )


def build_session(
    task: Task,
    ground: Ground,
    monitor: Monitor,
    parting: PartingCheckpoint,
    resumption: Resumption,
    ending: Ending,
) -> Session:
    return Session(
        interception=ground.interception,
        registry=ground.registry,
        controls=ground.controls,
        use=ground.use,
        progress=ground.progress,
        schedule=ground.schedule,
        grace_s=task.settings.watchdog.grace_s,
        monitor=monitor,
        parting=parting,
        resumption=resumption,
        ending=ending,
        barrier=ground.barrier,
        warn=ground.warn,
    )


def build_api(
    ground: Ground,
    judging: Judging,
    treatment: Treatment,
    resumption: Resumption,
    session: Session,
) -> UserApi:
    return UserApi(
        interception=ground.interception,
        progress=ground.progress,
        journal=ground.group_journal,
        barrier=ground.barrier,
        registry=ground.registry,
        controls=ground.controls,
        use=ground.use,
        dispatcher=treatment.dispatcher,
        pipeline=judging.pipeline,
        handlers=judging.alerts.handlers,
        resumption=resumption,
        read=session.read,
    )


def build_ranks(task: Task, ground: Ground, group: Group, treatment: Treatment) -> SeveralRanks:
    rundir, attempt, rank = task.rundir, task.attempt, task.rank
    records = CollectiveRecords(rundir.stacks(attempt, rank), rundir.records(attempt, rank))
    tells = [records.look] if group.waiting is None else [records.look, group.waiting.tell]
    return SeveralRanks(
        place=task.place,
        collectives=CollectiveCount(rundir.collectives(rank), tells=tells),
        link=group.link,
        judge_waiting=treatment.dispatcher.judge_waiting,
        only_watching=group.only_watching,
        progress=ground.progress,
        journal=ground.journal,
        barrier=ground.barrier,
        warn=ground.warn,
    )
