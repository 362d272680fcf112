"""What happens at a boundary, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.settings import ComputeCheckSettings, PartingSettings
from supervisor.worker.assembly.ground import Ground, Task
from supervisor.worker.assembly.recorders import Recorders
from supervisor.worker.assembly.state import State
from supervisor.worker.assembly.treatment import Judging, Treatment
from supervisor.worker.capture.memory_listener import MemoryListener
from supervisor.worker.capture.rank_memory import RankMemory
from supervisor.worker.capture.state_digests import StateDigests, TrailProbe
from supervisor.worker.corruption.state_check import StateCheck
from supervisor.worker.ground.boundary_listener import BoundaryListener
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.live.boundary import Boundary
from supervisor.worker.live.boundary_capture import BoundaryCapture
from supervisor.worker.live.checkpoint_listener import CheckpointListener
from supervisor.worker.live.compute_listener import ComputeListener
from supervisor.worker.live.corruption_listener import CorruptionListener
from supervisor.worker.live.first_variables import FirstVariables
from supervisor.worker.live.leave_listener import LeaveListener
from supervisor.worker.live.parting_checkpoint import PartingCheckpoint
from supervisor.worker.live.snapshot_listener import SnapshotListener
from supervisor.worker.live.step_times import StepTimes
from supervisor.worker.replay.recorded_steps import RecordedSteps


@dataclass(frozen=True, kw_only=True)
class BuiltBoundary:
    """The boundary, and those of its listeners that are called at other moments too."""

    boundary: Boundary
    recorded: RecordedSteps
    parting: PartingCheckpoint
    compute: ComputeListener


def build_boundary(
    task: Task,
    ground: Ground,
    recorders: Recorders,
    state: State,
    judging: Judging,
    treatment: Treatment,
    experiment: Experiment | None,
) -> BuiltBoundary:
    times = StepTimes()
    recorded = RecordedSteps(ground.journal, recorders.recorder, ground.controls)
    capture = BoundaryCapture(
        whole_state=state.whole,
        script_files=recorders.files.record,
        judge_waiting=treatment.dispatcher.judge_waiting,
        pipeline=judging.pipeline,
    )
    corruption = _build_corruption(task, ground, state, judging, treatment, times)
    checkpoints = CheckpointListener(
        turns=ground.turns,
        checkpointer=state.checkpointer,
        capture=capture,
        schedule=ground.schedule,
        times=times,
        health=ground.health,
    )
    parting = _build_parting(task, ground, recorders, state, capture)
    compute = _build_compute(task, ground, state, judging)
    in_order: list[BoundaryListener | None] = [
        times,
        recorded,
        FirstVariables(state.held),
        corruption,
        treatment.dispatcher,
        treatment.retry,
        _build_digests(task, ground, state),
        experiment,
        _build_snapshots(task, ground, state, times, corruption),
        checkpoints,
        parting,
        compute,
        _build_memory_look(task, ground, state),
        _build_leaving(task, ground, treatment, checkpoints),
    ]
    listeners = [listener for listener in in_order if listener is not None]
    boundary = Boundary(listeners, ground.schedule, ground.barrier)
    return BuiltBoundary(boundary=boundary, recorded=recorded, parting=parting, compute=compute)


def _build_corruption(
    task: Task,
    ground: Ground,
    state: State,
    judging: Judging,
    treatment: Treatment,
    times: StepTimes,
) -> CorruptionListener:
    return CorruptionListener(
        check=StateCheck(ground.registry, state.watch),
        requests=state.looks,
        snapshots=state.snapshots,
        runner=treatment.runner,
        alerts=judging.alerts,
        journal=ground.journal,
        policy=task.policy,
        warn=ground.warn,
        times=times,
        is_alone=task.place.is_alone,
    )


def _build_compute(task: Task, ground: Ground, state: State, judging: Judging) -> ComputeListener:
    is_replay = bool(task.order.experiment)
    return ComputeListener(
        ComputeCheckSettings() if is_replay else task.settings.compute_check,
        turns=ground.turns,
        check=state.compute,
        alerts=judging.alerts,
        journal=ground.journal,
        warn=ground.warn,
    )


def _build_digests(task: Task, ground: Ground, state: State) -> StateDigests | None:
    probe = ground.progress.probe
    if not isinstance(probe, TrailProbe):
        return None
    return StateDigests(
        task.rundir,
        task.rank,
        task.attempt,
        registry=ground.registry,
        probe=probe,
        state=state.training,
        held=state.held,
        census=state.census,
        use=ground.use,
    )


def _build_snapshots(
    task: Task, ground: Ground, state: State, times: StepTimes, corruption: CorruptionListener
) -> SnapshotListener:
    return SnapshotListener(
        task.settings,
        turns=ground.turns,
        state=state.training,
        held=state.held,
        snapshots=state.snapshots,
        schedule=ground.schedule,
        times=times,
        health=ground.health,
        corruption=corruption,
        barrier=ground.barrier,
    )


def _build_memory_look(task: Task, ground: Ground, state: State) -> MemoryListener:
    return MemoryListener(
        task.settings.checkpoint,
        turns=ground.turns,
        memory=state.memory,
        snapshots=state.snapshots,
        checkpointer=state.checkpointer,
        journal=ground.group_journal,
    )


def _build_parting(
    task: Task, ground: Ground, recorders: Recorders, state: State, capture: BoundaryCapture
) -> PartingCheckpoint:
    # Another node's memory cannot be read when one of its ranks has failed.
    memory = (
        RankMemory(task.kept, task.place, state.memory) if task.kept and task.is_one_node else None
    )
    has_parting = not task.order.experiment and (task.place.is_alone or memory is not None)
    return PartingCheckpoint(
        task.settings.parting if has_parting else PartingSettings(enabled=False),
        turns=ground.turns,
        capture=capture,
        checkpointer=state.checkpointer,
        script_files=recorders.files.record,
        tape=recorders.tape,
        schedule=ground.schedule,
        health=ground.health,
        progress=ground.progress,
        warn=ground.warn,
        of_rank=memory,
    )


def _build_leaving(
    task: Task, ground: Ground, treatment: Treatment, checkpoints: CheckpointListener
) -> LeaveListener:
    return LeaveListener(
        task.settings.stop_after_steps,
        schedule=ground.schedule,
        dispatcher=treatment.dispatcher,
        checkpoints=checkpoints,
        health=ground.health,
        barrier=ground.barrier,
    )
