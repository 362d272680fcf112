"""From a step's record to alerts, and what is looked at beside."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.detectors.alert_handlers import load_alert_handlers
from supervisor.pipeline import Pipeline
from supervisor.storage.cases.case_advisor import CaseAdvisor, load_memory
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import AlertLog, SilentAlertLog
from supervisor.worker.assembly.ground import Ground
from supervisor.worker.assembly.task import Task
from supervisor.worker.evidence.anomaly_scene import AnomalyScene
from supervisor.worker.evidence.model_scene import ModelScene
from supervisor.worker.probes.probes import Probes
from supervisor.worker.treatment.alert_teller import AlertTeller


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
