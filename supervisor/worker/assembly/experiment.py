"""What a replay for `supervisor explain` looks at."""

from __future__ import annotations

from supervisor.worker.assembly.ground import Ground
from supervisor.worker.assembly.task import Task
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.treatment.ordered_treatments import OrderedTreatments


def build_experiment(task: Task, ground: Ground, ordered: OrderedTreatments) -> Experiment | None:
    """None in a run that trains."""
    if not task.order.experiment:
        return None
    from supervisor.worker.inspection.inspection import Inspection  # only replays need it
    from supervisor.worker.interception.patches_writes import keep_writes_apart

    root, progress = task.rundir.root, ground.progress
    keep_writes_apart(root)
    return Experiment(
        task.order.experiment,
        registry=ground.registry,
        controls=ground.controls,
        use_fp32=ordered.fp32,
        inspection=Inspection(
            task.rundir.inspections(task.rank), ground.registry, lambda: progress.last_batch
        ),
        rank=task.rank,
    )
