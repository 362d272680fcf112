"""Who is asked from outside: by torch's patched functions, the process and the script."""

from __future__ import annotations

from supervisor.worker.assembly.boundary import BuiltBoundary
from supervisor.worker.assembly.ground import Ground
from supervisor.worker.assembly.group import Group
from supervisor.worker.assembly.judging import Judging
from supervisor.worker.assembly.recorders import Recorders
from supervisor.worker.assembly.state import State
from supervisor.worker.assembly.task import Task
from supervisor.worker.assembly.treatment import Treatment
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.live.monitor import Monitor
from supervisor.worker.live.parting_checkpoint import PartingCheckpoint
from supervisor.worker.process.collective_count import CollectiveCount
from supervisor.worker.process.collective_records import CollectiveRecords
from supervisor.worker.session.ending import Ending
from supervisor.worker.session.resumption import Resumption
from supervisor.worker.session.session import Session
from supervisor.worker.session.several_ranks import SeveralRanks
from supervisor.worker.session.user_api import UserApi


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
        dispatcher=treatment.dispatcher,
        only_watching=group.only_watching,
        progress=ground.progress,
        journal=ground.journal,
        barrier=ground.barrier,
        warn=ground.warn,
    )
