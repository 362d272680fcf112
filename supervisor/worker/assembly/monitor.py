"""Who answers the training hooks while the script trains."""

from __future__ import annotations

import functools

from supervisor.fault_injection.injector import FaultInjector
from supervisor.storage.steps.own_times import OwnTimes
from supervisor.worker.assembly.ground import Ground, Task
from supervisor.worker.assembly.recorders import Recorders
from supervisor.worker.assembly.state import State
from supervisor.worker.assembly.treatment import Judging, Treatment
from supervisor.worker.live.boundary import Boundary
from supervisor.worker.live.input_watch import InputWatch
from supervisor.worker.live.lead import Lead, NewTrainings
from supervisor.worker.live.loader_hooks import LoaderHooks
from supervisor.worker.live.monitor import Monitor
from supervisor.worker.live.own_time import OwnTime
from supervisor.worker.live.script_changes import ScriptChanges
from supervisor.worker.live.step_recorder import StepRecorder
from supervisor.worker.live.update_hooks import UpdateHooks
from supervisor.worker.mistakes.watch import MistakeWatch
from supervisor.worker.probes.probes import Probes
from supervisor.worker.recording.large_reads import LargeReads
from supervisor.worker.recording.recording import Recording


def build_monitor(
    task: Task,
    ground: Ground,
    recorders: Recorders,
    state: State,
    judging: Judging,
    treatment: Treatment,
    boundary: Boundary,
) -> Monitor:
    interception, progress, barrier = ground.interception, ground.progress, ground.barrier
    recording = _build_recording(task, ground, recorders)
    injector = _build_injector(task)
    lead = _build_lead(task, ground, state, treatment)
    steps = _build_step_recorder(task, ground, recorders, state, judging.probes, treatment)
    return Monitor(
        interception=interception,
        progress=progress,
        registry=ground.registry,
        recording=recording,
        lead=lead,
        steps=steps,
        updates=UpdateHooks(
            progress=progress,
            lead=lead,
            steps=steps,
            dispatcher=treatment.dispatcher,
            controls=treatment.updates,
            boundary=boundary,
            watch=state.watch,
            trial=treatment.trial,
            injector=injector,
            barrier=barrier,
        ),
        census=state.census,
        update_controls=treatment.updates,
        boundary=boundary,
        loaders=LoaderHooks(interception, progress, recording, recorders.heartbeat, barrier),
        injector=injector,
        heartbeat=recorders.heartbeat,
        exchanges=ground.exchanges,
        averages=ground.averages,
        compute=state.compute,
        trial=treatment.trial,
        mistakes=MistakeWatch(
            task.settings.mistakes,
            ground.registry,
            world_size=task.place.world_size,
            tells=task.place.leads and not task.order.experiment,
            alerts=judging.alerts,
            warn=ground.warn,
            barrier=barrier,
        ),
        barrier=barrier,
    )


def _build_recording(task: Task, ground: Ground, recorders: Recorders) -> Recording:
    budget = task.settings.fast_forward.reads_budget_mib * 2**20
    large = LargeReads(recorders.tape, budget, functools.partial(ground.warn, aloud=True))
    return Recording(recorders.tape, large)


def _build_injector(task: Task) -> FaultInjector:
    done = task.rundir.root / f"faults{task.file_suffix}.json"
    return FaultInjector(task.settings.faults, done, rank=task.rank)


def _build_lead(task: Task, ground: Ground, state: State, treatment: Treatment) -> Lead:
    trainings = NewTrainings(
        treatment.dispatcher, state.snapshots, ground.controls, ground.group_journal
    )
    return Lead(ground.progress, trainings, of_ranks=not task.place.is_alone)


def _build_step_recorder(
    task: Task,
    ground: Ground,
    recorders: Recorders,
    state: State,
    probes: Probes,
    treatment: Treatment,
) -> StepRecorder:
    return StepRecorder(
        registry=ground.registry,
        progress=ground.progress,
        recorder=recorders.recorder,
        tape=recorders.tape,
        probes=probes,
        update_controls=treatment.updates,
        watch=state.watch,
        inputs=InputWatch(is_on=task.settings.probes.enabled, tell=ground.warn),
        changes=ScriptChanges(
            ground.registry, state.watch, state.snapshots, is_on=task.settings.probes.enabled
        ),
        own_time=OwnTime(None if task.place.is_alone else OwnTimes(task.rundir.steps(task.rank))),
        warn=ground.warn,
    )
