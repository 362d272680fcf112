"""How a worker is put together: from the ground up, each part of those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.ranks import RankPlace
from supervisor.storage.run.rundir import RunDirectory
from supervisor.worker.assembly.boundary import build_boundary
from supervisor.worker.assembly.ground import Ground, Task, build_ground, load_task
from supervisor.worker.assembly.group import build_group
from supervisor.worker.assembly.monitor import build_monitor
from supervisor.worker.assembly.recorders import build_recorders
from supervisor.worker.assembly.session import (
    build_api,
    build_arrival,
    build_ending,
    build_ranks,
    build_restorer,
    build_resumption,
    build_session,
)
from supervisor.worker.assembly.state import build_ring, build_state, find_start
from supervisor.worker.assembly.treatment import build_judging, build_treatment
from supervisor.worker.corruption.normalisation_watch import NormalisationWatch
from supervisor.worker.ground.error_barrier import Part
from supervisor.worker.group.exchanges import Exchanges
from supervisor.worker.group.first_averages import FirstAverages
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.live.corruption_listener import CorruptionListener
from supervisor.worker.recording.attempt_files import AttemptFiles
from supervisor.worker.recording.loading.loading_proofs import LoadingProofs
from supervisor.worker.replay.silenced_collectives import SilencedCollectives
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.session.session import Session
from supervisor.worker.session.several_ranks import SeveralRanks
from supervisor.worker.session.user_api import UserApi
from supervisor.worker.treatment.ordered_treatments import OrderedTreatments


@dataclass(frozen=True, kw_only=True)
class BuiltWorker:
    """What the rest of the worker sees of it: who is asked, and by which patches.

    Attributes:
        first_random: path of the random states with which the script began.
        is_experiment: this is a replay for `supervisor explain`.
        collectives: silenced in the replay under way; None for none.
        exchanges: counts what ranks exchange.
        averages: knows when wrapped models begin to average.
        counting: the part to which it belongs.
        is_of_ranks: several were started together.
        attempt: of the run.
        watching: the part to which `normalisation` belongs.
    """

    session: Session
    api: UserApi
    files: AttemptFiles
    loading: LoadingProofs
    samples: SampleGuard
    ranks: SeveralRanks
    collectives: SilencedCollectives | None
    exchanges: Exchanges
    averages: FirstAverages
    counting: Part
    is_of_ranks: bool
    attempt: int
    normalisation: NormalisationWatch
    watching: Part
    seed: int | None
    first_random: Path
    is_experiment: bool


def build_worker(
    rundir: RunDirectory,
    attempt: int,
    place: RankPlace = RankPlace(),  # noqa: B008 (frozen)
    kept: Sequence[str] = (),
) -> BuiltWorker:
    """Called once, when torch has been imported by the script, before the script goes on.

    Args:
        rundir, attempt: of the run.
        place: among the ranks that were started together.
        kept: see `Given.kept`.

    Raises:
        SupervisorError: an order, config or policy that cannot be read.
        OSError: the run directory cannot be written.
    """
    task = load_task(rundir, attempt, place, kept)
    ground = build_ground(task)
    ring = build_ring(task, ground.journal)
    start = find_start(task, ring, ground.journal)
    recorders = build_recorders(task, ground, start)
    state = build_state(task, ground, ring, recorders)
    group = build_group(task, ground, state.snapshots, state.memory)
    agreement = group.agreement
    judging = build_judging(task, ground, ring)
    treatment = build_treatment(task, ground, ring, recorders, state, agreement, judging)
    ordered = treatment.ordered
    experiment = build_experiment(task, ground, ordered)
    live = build_boundary(task, ground, recorders, state, judging, treatment, experiment)
    monitor = build_monitor(task, ground, recorders, state, judging, treatment, live.boundary)
    restorer = build_restorer(task, ground, state, judging.pipeline, ordered)
    arrival = build_arrival(
        task, ground, ring, recorders, restorer, agreement, treatment, live, monitor
    )
    resumption = build_resumption(task, ground, start, recorders, state, arrival)
    ending = build_ending(
        ground, recorders, state, group, judging, treatment, experiment, live, monitor
    )
    session = build_session(task, ground, monitor, live.parting, resumption, ending)
    if start is None:
        ordered.from_nothing()
        recorders.files.record.begin_anew()
    return BuiltWorker(
        session=session,
        api=build_api(ground, judging, treatment, resumption, session),
        files=recorders.files,
        loading=recorders.loading,
        samples=recorders.samples,
        ranks=build_ranks(task, ground, group, treatment),
        collectives=resumption.collectives,
        exchanges=ground.exchanges,
        averages=ground.averages,
        counting=ground.barrier("exchanges"),
        is_of_ranks=not place.is_alone,
        attempt=attempt,
        normalisation=state.watch.normalisation,
        watching=ground.barrier(CorruptionListener.name),
        seed=task.settings.seed,
        first_random=rundir.tape(place.rank).with_suffix(".random"),
        is_experiment=bool(task.order.experiment),
    )


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
