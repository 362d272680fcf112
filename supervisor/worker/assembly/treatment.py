"""From a step's record to its judgement, and to what is done about it."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.actions.catalogue import build_actions
from supervisor.detectors.alert_handlers import load_alert_handlers
from supervisor.pipeline import Pipeline
from supervisor.storage.cases.case_advisor import CaseAdvisor, load_memory
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import AlertLog, SilentAlertLog
from supervisor.worker.assembly.ground import Ground, Task
from supervisor.worker.assembly.recorders import Recorders
from supervisor.worker.assembly.state import State
from supervisor.worker.evidence.anomaly_scene import AnomalyScene
from supervisor.worker.evidence.model_scene import ModelScene
from supervisor.worker.group.agreement import Agreement
from supervisor.worker.probes.probes import Probes
from supervisor.worker.treatment.action_runner import ActionRunner, ActionTools
from supervisor.worker.treatment.alert_teller import AlertTeller
from supervisor.worker.treatment.dispatcher import Dispatcher
from supervisor.worker.treatment.exact_retry import ExactRetry
from supervisor.worker.treatment.follower_guard import FollowerGuard
from supervisor.worker.treatment.healing import Healing
from supervisor.worker.treatment.ordered_treatments import OrderedTreatments
from supervisor.worker.treatment.skipped_updates import SkippedUpdates
from supervisor.worker.treatment.trial_step import OlderWeights
from supervisor.worker.treatment.update_controls import UpdateControls


@dataclass(frozen=True, kw_only=True)
class Judging:
    """Who finds that something is wrong, and tells it."""

    pipeline: Pipeline
    probes: Probes
    model_scene: ModelScene
    alerts: AlertTeller


def build_judging(task: Task, ground: Ground, ring: CheckpointRing) -> Judging:
    rundir, settings, registry, leads = (
        task.rundir,
        task.settings,
        ground.registry,
        task.place.leads,
    )
    advisor = CaseAdvisor(load_memory(rundir)) if task.policy.case_library else None
    pipeline = Pipeline(settings, task.policy, advisor=advisor)
    probes = Probes(
        settings.probes,
        registry=registry,
        interception=ground.interception,
        journal=ground.journal,
        warn=ground.warn,
    )
    model_scene = ModelScene(rundir, task.rank, lambda: registry.models, ground.warn)
    scene = AnomalyScene(
        rundir, task.rank, settings.capture, ring, model_scene, lambda: pipeline.detectors
    )
    alerts = AlertTeller(
        ground.group_journal,
        AlertLog(rundir.alerts) if leads else SilentAlertLog(),
        handlers=load_alert_handlers(settings.alert_handlers) if leads else [],
        probes=probes,
        scene=scene,
        progress=ground.progress,
        barrier=ground.barrier,
        warn=ground.warn,
    )
    return Judging(pipeline=pipeline, probes=probes, model_scene=model_scene, alerts=alerts)


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """Who decides about an update, and who acts.

    Attributes:
        ordered: the treatments that the parent's order begins with.
    """

    runner: ActionRunner
    dispatcher: Dispatcher
    retry: ExactRetry
    trial: OlderWeights
    updates: UpdateControls
    ordered: OrderedTreatments


def build_treatment(
    task: Task,
    ground: Ground,
    ring: CheckpointRing,
    recorders: Recorders,
    state: State,
    agreement: Agreement,
    judging: Judging,
) -> Treatment:
    healing = Healing(
        pipeline=judging.pipeline,
        registry=ground.registry,
        snapshots=state.snapshots,
        held=state.held,
        warn=ground.warn,
    )
    trial = _build_trial(task, ground, recorders, state, judging)
    runner = _build_runner(task, ground, state, agreement, judging, healing, trial)
    retry = _build_retry(task, ground, ring, recorders, state, runner)
    return Treatment(
        runner=runner,
        dispatcher=Dispatcher(
            agreement=agreement,
            pipeline=judging.pipeline,
            journal=ground.group_journal,
            alerts=judging.alerts,
            runner=runner,
            recorder=recorders.recorder,
            health=ground.health,
            retry=retry,
            warn=ground.warn,
        ),
        retry=retry,
        trial=trial,
        updates=_build_updates(task, ground, recorders, state, runner, healing),
        ordered=OrderedTreatments(
            task.order,
            controls=ground.controls,
            registry=ground.registry,
            runner=runner,
            pipeline=judging.pipeline,
            barrier=ground.barrier,
        ),
    )


def _build_runner(
    task: Task,
    ground: Ground,
    state: State,
    agreement: Agreement,
    judging: Judging,
    healing: Healing,
    trial: OlderWeights,
) -> ActionRunner:
    tools = ActionTools(
        tell_ranks=agreement.tell,
        policy=task.policy,
        controls=ground.controls,
        registry=ground.registry,
        state=state.training,
        snapshots=state.snapshots,
        health=ground.health,
        use=ground.use,
        schedule=ground.schedule,
        pre_treatment=state.pre_treatment,
        healing=healing,
        trial=trial,
        state_changed=state.watch.begin_anew,
    )
    return ActionRunner(
        build_actions(),
        tools,
        agreement=agreement,
        pipeline=judging.pipeline,
        journal=ground.group_journal,
        warn=ground.warn,
    )


def _build_trial(
    task: Task, ground: Ground, recorders: Recorders, state: State, judging: Judging
) -> OlderWeights:
    return OlderWeights(
        registry=ground.registry,
        state=state.training,
        memory=state.memory,
        progress=ground.progress,
        pipeline=judging.pipeline,
        recorder=recorders.recorder,
        barrier=ground.barrier,
        is_possible=task.place.is_alone and not task.order.experiment,
    )


def _build_retry(
    task: Task,
    ground: Ground,
    ring: CheckpointRing,
    recorders: Recorders,
    state: State,
    runner: ActionRunner,
) -> ExactRetry:
    return ExactRetry(
        policy=task.policy,
        order=task.order,
        is_possible=(
            task.place.is_alone and task.settings.fast_forward.enabled and not task.order.experiment
        ),
        ring=ring,
        recorder=recorders.recorder,
        schedule=ground.schedule,
        looks=state.looks,
        runner=runner,
        journal=ground.journal,
        warn=ground.warn,
    )


def _build_updates(
    task: Task,
    ground: Ground,
    recorders: Recorders,
    state: State,
    runner: ActionRunner,
    healing: Healing,
) -> UpdateControls:
    skipped = SkippedUpdates(
        ground.group_journal,
        ground.progress,
        recorders.samples,
        healing,
        state.looks,
        task.order.skip_steps,
    )
    followers = FollowerGuard(task.policy, ground.progress, ground.health, runner)
    recorder, rates = recorders.recorder, recorders.rates
    return UpdateControls(
        ground.controls,
        ground.use,
        skipped.left_out,
        followers.leaves_out,
        lambda factor: rates.append(recorder.rows - 1, factor),
        task.order.skip_steps,
    )
