"""Builds the worker's parts from the ground up: each gets what it needs, and nothing later."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.actions.catalogue import build_actions
from supervisor.actions.controls import Controls
from supervisor.config import load_resolved_config, load_resolved_policy
from supervisor.detectors.alert_handlers import load_alert_handlers
from supervisor.errors import CheckpointError
from supervisor.events.state_events import CheckpointRejected
from supervisor.fault_injection.injector import FaultInjector
from supervisor.pipeline import Pipeline
from supervisor.ranks import RankPlace
from supervisor.records import WorkerOrder
from supervisor.risk_lines import RiskLines
from supervisor.settings import PartingSettings, PolicySettings, RunSettings
from supervisor.storage.cases.case_advisor import CaseAdvisor
from supervisor.storage.cases.case_memory import load_memory
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.journal.journal import AlertLog, Journal, SilentAlertLog, SilentJournal
from supervisor.storage.run.meeting_place import MeetingPlace
from supervisor.storage.run.orders import load_order
from supervisor.storage.run.rank_board import RankBoard
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.run.set_aside import SetAside
from supervisor.storage.steps.applied_rates import AppliedRates
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.more_values import MAX_NAMES
from supervisor.storage.steps.own_times import OwnTimes
from supervisor.storage.steps.step_rows import OBSERVED_SLOTS
from supervisor.storage.steps.tape import TapeWriter
from supervisor.training_state.registry import Registry
from supervisor.training_state.replicas import parameters_alike
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.capture.checkpoint_writer import CheckpointWriter
from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.capture.follower_writer import FollowerWriter
from supervisor.worker.capture.lead_writer import LeadWriter
from supervisor.worker.capture.pre_treatment_checkpoint import PreTreatmentCheckpoint
from supervisor.worker.capture.rank_memory import RankMemory
from supervisor.worker.capture.script_census import ScriptCensus
from supervisor.worker.capture.single_writer import SingleWriter
from supervisor.worker.capture.split_replicas import SplitReplicas
from supervisor.worker.capture.state_digests import StateDigests, TrailProbe
from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.capture.whole_state import WholeState
from supervisor.worker.corruption.look_requests import LookRequests
from supervisor.worker.corruption.normalisation_watch import NormalisationWatch
from supervisor.worker.corruption.state_check import StateCheck
from supervisor.worker.corruption.update_watch import UpdateWatch
from supervisor.worker.evidence.anomaly_scene import AnomalyScene
from supervisor.worker.evidence.model_scene import ModelScene
from supervisor.worker.ground.boundary_listener import BoundaryListener
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.error_barrier import ErrorBarrier, Part
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_health import RunHealth
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.ground.script_use import ScriptUse
from supervisor.worker.ground.step_probe import StepProbe
from supervisor.worker.ground.turns import GroupTurns, Turns
from supervisor.worker.group.agreement import Agreement, GroupAgreement
from supervisor.worker.group.group_schedule import GroupSchedule
from supervisor.worker.group.node_link import NodeLink
from supervisor.worker.group.nodes_board import Board, NodesBoard
from supervisor.worker.group.only_watching import OnlyWatching
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.live.boundary import Boundary
from supervisor.worker.live.boundary_capture import BoundaryCapture
from supervisor.worker.live.checkpoint_listener import CheckpointListener
from supervisor.worker.live.corruption_listener import CorruptionListener
from supervisor.worker.live.first_variables import FirstVariables
from supervisor.worker.live.lead import Lead
from supervisor.worker.live.leave_listener import LeaveListener
from supervisor.worker.live.loader_hooks import LoaderHooks
from supervisor.worker.live.monitor import Monitor
from supervisor.worker.live.new_trainings import NewTrainings
from supervisor.worker.live.own_time import OwnTime
from supervisor.worker.live.parting_checkpoint import PartingCheckpoint
from supervisor.worker.live.snapshot_listener import SnapshotListener
from supervisor.worker.live.step_recorder import StepRecorder
from supervisor.worker.live.step_times import StepTimes
from supervisor.worker.live.update_hooks import UpdateHooks
from supervisor.worker.probes.probes import Probes
from supervisor.worker.process.collective_count import CollectiveCount
from supervisor.worker.process.heartbeat import Heartbeat
from supervisor.worker.process.start_over import loads_all
from supervisor.worker.recording.attempt_files import AttemptFiles
from supervisor.worker.recording.file_sizes import FileSizes
from supervisor.worker.recording.large_reads import LargeReads
from supervisor.worker.recording.loading_proofs import LoadingProofs
from supervisor.worker.recording.recording import Recording
from supervisor.worker.recording.replayed_files import ReplayedFiles
from supervisor.worker.replay.first_step import FirstStep
from supervisor.worker.replay.silenced_collectives import SilencedCollectives
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.session.arrival import Arrival
from supervisor.worker.session.ending import Ending
from supervisor.worker.session.resumption import Resumption
from supervisor.worker.session.session import Session
from supervisor.worker.session.several_ranks import SeveralRanks
from supervisor.worker.session.starting_point import ResumePoint, find_starting_point
from supervisor.worker.session.state_restorer import StateRestorer
from supervisor.worker.session.user_api import UserApi
from supervisor.worker.treatment.action_runner import ActionRunner, ActionTools
from supervisor.worker.treatment.alert_teller import AlertTeller
from supervisor.worker.treatment.dispatcher import Dispatcher
from supervisor.worker.treatment.exact_retry import MOST as MOST_RETRIES
from supervisor.worker.treatment.exact_retry import ExactRetry
from supervisor.worker.treatment.follower_guard import FollowerGuard
from supervisor.worker.treatment.healing import Healing
from supervisor.worker.treatment.ordered_treatments import OrderedTreatments
from supervisor.worker.treatment.skipped_updates import SkippedUpdates
from supervisor.worker.treatment.update_controls import UpdateControls


@dataclass(frozen=True, kw_only=True)
class BuiltWorker:
    """What the rest of the worker sees of it: who is asked, and by which patches.

    Attributes:
        first_random: path of the random states with which the script began.
        is_experiment: this is a replay for `supervisor explain`.
        collectives: silenced in the replay under way; None for none.
        watching: the part to which `normalisation` belongs.
    """

    session: Session
    api: UserApi
    files: AttemptFiles
    loading: LoadingProofs
    samples: SampleGuard
    ranks: SeveralRanks
    collectives: SilencedCollectives | None
    normalisation: NormalisationWatch
    watching: Part
    seed: int | None
    first_random: Path
    is_experiment: bool


@dataclass(frozen=True, kw_only=True)
class _Task:
    """Which worker this is, and what it was told.

    Attributes:
        kept: see `Given.kept`.
    """

    rundir: RunDirectory
    attempt: int
    place: RankPlace
    settings: RunSettings
    policy: PolicySettings
    order: WorkerOrder
    kept: Sequence[str]

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def file_suffix(self) -> str:
        """Of the files that each rank has for itself, beside those of the first rank."""
        return "" if self.place.leads else f"_rank_{self.rank}"


@dataclass(frozen=True, kw_only=True)
class _Ground:
    """What nearly everybody writes to or reads.

    Attributes:
        group_journal: for what all ranks find, decide and do alike: the first rank writes it.
    """

    interception: InterceptionState
    progress: Progress
    journal: Journal
    group_journal: Journal
    warn: RunWarnings
    barrier: ErrorBarrier
    schedule: BoundarySchedule
    turns: Turns
    health: RunHealth
    use: ScriptUse
    registry: Registry
    controls: Controls


@dataclass(frozen=True, kw_only=True)
class _Records:
    """What is written into the run directory."""

    ring: CheckpointRing
    start: ResumePoint | None
    tape: TapeWriter
    recorder: FlightRecorder
    rates: AppliedRates
    checkpointer: Checkpointer
    files: AttemptFiles
    heartbeat: Heartbeat
    loading: LoadingProofs
    samples: SampleGuard


@dataclass(frozen=True, kw_only=True)
class _State:
    """The state of the training, live and in copies."""

    training: TrainingState
    snapshots: SnapshotRing
    held: UserTensors
    census: ScriptCensus
    whole: WholeState
    pre_treatment: PreTreatmentCheckpoint
    watch: UpdateWatch
    looks: LookRequests


@dataclass(frozen=True)
class _Group:
    """What the ranks agree by, and what is left where they cannot."""

    agreement: Agreement
    only_watching: OnlyWatching
    link: NodeLink | None = None


@dataclass(frozen=True, kw_only=True)
class _Judging:
    """From a record to what is done about it."""

    pipeline: Pipeline
    probes: Probes
    model_scene: ModelScene
    alerts: AlertTeller
    runner: ActionRunner
    dispatcher: Dispatcher
    retry: ExactRetry
    updates: UpdateControls
    ordered: OrderedTreatments
    experiment: Experiment | None


@dataclass(frozen=True, kw_only=True)
class _Live:
    """Who answers the training hooks."""

    boundary: Boundary
    first_step: FirstStep
    parting: PartingCheckpoint
    monitor: Monitor


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
    task = _Task(
        rundir=rundir,
        attempt=attempt,
        place=place,
        settings=load_resolved_config(rundir.config_yaml),
        policy=load_resolved_policy(rundir.policy_yaml),
        order=load_order(rundir, attempt),
        kept=kept,
    )
    ground = _build_ground(task)
    records = _build_records(task, ground)
    state = _build_state(task, ground, records)
    group = _build_group(task, ground, state)
    judging = _build_judging(task, ground, records, state, group)
    live = _build_live(task, ground, records, state, judging)
    resumption = _build_resumption(task, ground, records, state, group, judging, live)
    session = _build_session(ground, records, group, judging, live, resumption)
    if records.start is None:
        judging.ordered.from_nothing()
        records.files.record.begin_anew()
    return BuiltWorker(
        session=session,
        api=UserApi(
            interception=ground.interception,
            progress=ground.progress,
            journal=ground.group_journal,
            barrier=ground.barrier,
            registry=ground.registry,
            controls=ground.controls,
            use=ground.use,
            dispatcher=judging.dispatcher,
            pipeline=judging.pipeline,
            handlers=judging.alerts.handlers,
            resumption=resumption,
            read=session.read,
        ),
        files=records.files,
        loading=records.loading,
        samples=records.samples,
        ranks=SeveralRanks(
            place=task.place,
            collectives=CollectiveCount(rundir.collectives(place.rank)),
            link=group.link,
            dispatcher=judging.dispatcher,
            only_watching=group.only_watching,
            progress=ground.progress,
            journal=ground.journal,
            barrier=ground.barrier,
            warn=ground.warn,
        ),
        collectives=resumption.collectives,
        normalisation=state.watch.normalisation,
        watching=ground.barrier(CorruptionListener.name),
        seed=task.settings.seed,
        first_random=rundir.tape(place.rank).with_suffix(".random"),
        is_experiment=bool(task.order.experiment),
    )


def _build_ground(task: _Task) -> _Ground:
    probe = TrailProbe() if task.settings.trail else StepProbe()
    probe.in_environment = task.settings.in_environment
    progress, interception = Progress(probe), InterceptionState()
    journal = Journal(
        task.rundir.rank_journal(task.rank),
        attempt=task.attempt,
        rank=task.rank,
        limits=task.settings.limits,
    )
    return _Ground(
        interception=interception,
        progress=progress,
        journal=journal,
        group_journal=journal if task.place.leads else SilentJournal(),
        warn=RunWarnings(journal, progress),
        barrier=ErrorBarrier(journal, interception.turn_off, progress.tape_is_broken),
        schedule=BoundarySchedule() if task.place.is_alone else GroupSchedule(),
        turns=Turns() if task.place.is_alone else GroupTurns(),
        health=RunHealth(RiskLines.of(task.policy)),
        use=ScriptUse(),
        registry=Registry(),
        controls=Controls(),
    )


def _build_records(task: _Task, ground: _Ground) -> _Records:
    rundir, rank, settings = task.rundir, task.rank, task.settings
    journal, warn = ground.journal, ground.warn

    def rejected(checkpoint: Checkpoint, reason: str) -> None:
        journal.write(CheckpointRejected(step=checkpoint.step, reason=reason))

    def left_out(name: str) -> None:
        warn(
            f"observed value '{name}': there are {MAX_NAMES} other names already: it and further "
            "new ones are judged by detectors, but not recorded: give values fewer names"
        )

    def thinned(apart: int) -> None:
        warn(
            f"observed values are near their disk budget: those beyond the first {OBSERVED_SLOTS} "
            f"names are kept of every {apart}th step only: raise observed_max_gib, or observe less",
            aloud=True,
        )

    def found_sample(message: str) -> None:
        warn(message, aloud=True)

    def files_unknown(why: str) -> None:
        warn(f"what the script does with its files is not all recorded ({why})", aloud=True)

    def tape_full(why: str) -> None:
        if ground.progress.tape_is_whole:  # else no resume is exact anyway
            step = ground.progress.steps_done
            lost = f"what a resume must know is no longer recorded from step {step} on: {why}"
            ground.progress.tape_is_broken(lost)
            warn(f"{lost}: later resumes are approximate", aloud=True)

    skip_loading = settings.fast_forward.skip_loading
    loading = LoadingProofs(
        ground.interception,
        promised=bool(skip_loading),
        is_noted=skip_loading is not False,
        # A replay that has to load after all begins again: among ranks it cannot do so alone.
        may_leave_out=skip_loading is not False and not loads_all() and task.place.is_alone,
    )
    samples = SampleGuard(
        rundir.root / "bad_samples.jsonl",
        task.attempt,
        found_sample,
        ground.interception,
        ground.progress,
    )
    ring = CheckpointRing(rundir.checkpoints, settings.checkpoint, on_rejected=rejected)
    start = find_starting_point(task.order, ring, journal, task.place)
    if task.place.leads:
        with contextlib.suppress(CheckpointError):  # they stay what they are: for a person alone
            ring.leave_course(-1 if start is None else start.checkpoint.step)
    tape = TapeWriter(
        rundir.tape(rank),
        keep=start.tape_offset if start is not None else 0,
        budget=int(settings.fast_forward.tape_budget_mib * (1 << 20)),
        on_full=tape_full,
    )
    recorder = FlightRecorder(
        rundir.steps(rank),
        task.attempt,
        on_left_out=left_out,
        max_more_bytes=settings.observed_max_gib * (1 << 30),
        on_thinned=thinned,
    )
    set_aside = SetAside(rundir, rank)
    record = ScriptFiles(rundir, rank, ground.progress.has_begun, files_unknown)
    sizes = FileSizes(
        tape,
        rundir.root / f"appended{task.file_suffix}.json",
        begins_again=task.attempt > 1 and start is None,
    )
    return _Records(
        ring=ring,
        start=start,
        tape=tape,
        recorder=recorder,
        rates=AppliedRates(rundir.steps(rank)),
        checkpointer=Checkpointer(
            _checkpoint_writer(task, ground, ring, tape),
            settings.checkpoint,
            ground.group_journal,
            puts_off=task.place.is_alone,
        ),
        files=AttemptFiles(
            sizes=sizes,
            record=record,
            replayed=ReplayedFiles(set_aside, record),
            set_aside=set_aside,
        ),
        heartbeat=Heartbeat(rundir.alive(rank)),
        loading=loading,
        samples=samples,
    )


def _checkpoint_writer(
    task: _Task, ground: _Ground, ring: CheckpointRing, tape: TapeWriter
) -> CheckpointWriter:
    place, attempt = task.place, task.attempt
    if place.is_alone:
        return SingleWriter(ring, tape.sync)
    if place.leads:
        replicas = SplitReplicas(
            ring=ring,
            schedule=ground.schedule,
            journal=ground.journal,
            warn=ground.warn,
            may_go_back=not task.policy.observe_only and task.order.retries < MOST_RETRIES,
        )
        return LeadWriter(ring, tape.sync, place=place, attempt=attempt, on_split=replicas.found)
    return FollowerWriter(
        ring,
        tape.sync,
        place=place,
        attempt=attempt,
        alike=lambda: parameters_alike(ground.registry.models),
    )


def _build_state(task: _Task, ground: _Ground, records: _Records) -> _State:
    training, held = TrainingState(ground.registry), UserTensors(ground.registry)
    written = records.files.replayed.written
    census = ScriptCensus(ground.registry, ground.barrier, written.training_begins)
    whole = WholeState(
        state=training,
        held=held,
        census=census,
        registry=ground.registry,
        controls=ground.controls,
        tape=records.tape,
        loading=records.loading,
        written=written,
        recorder=records.recorder,
        progress=ground.progress,
        health=ground.health,
    )
    return _State(
        training=training,
        snapshots=SnapshotRing(task.settings.snapshot),
        held=held,
        census=census,
        whole=whole,
        pre_treatment=PreTreatmentCheckpoint(
            whole_state=whole.take,
            checkpointer=records.checkpointer,
            progress=ground.progress,
            run=task.rundir.root,
            warn=ground.warn,
        ),
        watch=UpdateWatch(ground.registry),
        looks=LookRequests(ground.schedule),
    )


def _build_group(task: _Task, ground: _Ground, state: _State) -> _Group:
    place, schedule, turns, warn = task.place, ground.schedule, ground.turns, ground.warn
    only_watching = OnlyWatching(
        policy=task.policy,
        snapshots=state.snapshots,
        saving=(SnapshotListener.name, CheckpointListener.name, PartingCheckpoint.name),
        barrier=ground.barrier,
        warn=warn,
    )
    if not (isinstance(schedule, GroupSchedule) and isinstance(turns, GroupTurns)):
        return _Group(Agreement(), only_watching)

    def split(step: int) -> None:
        why = f"the ranks have decided differently before step {step}"
        warn(f"{why}: all begin again from the last checkpoint", aloud=place.leads)
        schedule.ask_for_restart(why)

    path = task.rundir.board(task.attempt, place.node)
    link = NodeLink(place.node, place.nodes) if place.nodes > 1 else None
    board: Board
    if link is None:
        board = RankBoard(path, place.local_rank, place.local_world_size)
    else:
        board = NodesBoard(path, place, link)
    agreement = GroupAgreement(
        board,
        schedule,
        turns,
        ground.progress,
        rank=place.rank,
        on_lost=lambda: only_watching.begin(
            "the ranks do not make the same steps: from here on this one is only watched: nothing "
            "is treated or saved"
        ),
        on_split=split,
    )
    return _Group(
        agreement=agreement,
        only_watching=only_watching,
        link=link if place.local_rank == 0 else None,
    )


def _build_judging(
    task: _Task, ground: _Ground, records: _Records, state: _State, group: _Group
) -> _Judging:
    rundir, policy, registry = task.rundir, task.policy, ground.registry
    advisor = CaseAdvisor(load_memory(rundir)) if policy.case_library else None
    pipeline = Pipeline(task.settings, policy, advisor=advisor)
    healing = Healing(
        pipeline=pipeline,
        registry=registry,
        snapshots=state.snapshots,
        held=state.held,
        warn=ground.warn,
    )
    tools = ActionTools(
        policy=policy,
        controls=ground.controls,
        registry=registry,
        state=state.training,
        snapshots=state.snapshots,
        health=ground.health,
        use=ground.use,
        schedule=ground.schedule,
        pre_treatment=state.pre_treatment,
        healing=healing,
        state_changed=state.watch.begin_anew,
    )
    runner = ActionRunner(
        build_actions(),
        tools,
        agreement=group.agreement,
        pipeline=pipeline,
        journal=ground.group_journal,
        warn=ground.warn,
    )
    probes = Probes(
        task.settings.probes,
        registry=registry,
        interception=ground.interception,
        journal=ground.journal,
        warn=ground.warn,
    )
    model_scene = ModelScene(rundir, task.rank, lambda: registry.models, ground.warn)
    alerts = AlertTeller(
        ground.group_journal,
        AlertLog(rundir.alerts) if task.place.leads else SilentAlertLog(),
        handlers=load_alert_handlers(task.settings.alert_handlers) if task.place.leads else [],
        probes=probes,
        scene=AnomalyScene(
            rundir,
            task.rank,
            task.settings.capture,
            records.ring,
            model_scene,
            lambda: pipeline.detectors,
        ),
        progress=ground.progress,
        barrier=ground.barrier,
        warn=ground.warn,
    )
    retry = ExactRetry(
        policy=policy,
        order=task.order,
        is_possible=(
            task.place.is_alone and task.settings.fast_forward.enabled and not task.order.experiment
        ),
        ring=records.ring,
        recorder=records.recorder,
        schedule=ground.schedule,
        looks=state.looks,
        runner=runner,
        journal=ground.journal,
        warn=ground.warn,
    )
    dispatcher = Dispatcher(
        agreement=group.agreement,
        pipeline=pipeline,
        journal=ground.group_journal,
        alerts=alerts,
        runner=runner,
        recorder=records.recorder,
        health=ground.health,
        retry=retry,
        warn=ground.warn,
    )
    followers = FollowerGuard(policy, ground.progress, ground.health, runner)
    skipped = SkippedUpdates(
        ground.group_journal,
        ground.progress,
        records.samples,
        healing,
        state.looks,
        task.order.skip_steps,
    )
    ordered = OrderedTreatments(
        task.order,
        controls=ground.controls,
        registry=registry,
        runner=runner,
        barrier=ground.barrier,
    )
    return _Judging(
        pipeline=pipeline,
        probes=probes,
        model_scene=model_scene,
        alerts=alerts,
        runner=runner,
        dispatcher=dispatcher,
        retry=retry,
        updates=UpdateControls(
            ground.controls,
            ground.use,
            skipped.left_out,
            followers.leaves_out,
            lambda factor: records.rates.append(records.recorder.rows - 1, factor),
            task.order.skip_steps,
        ),
        ordered=ordered,
        experiment=_build_experiment(task, ground, ordered) if task.order.experiment else None,
    )


def _build_experiment(task: _Task, ground: _Ground, ordered: OrderedTreatments) -> Experiment:
    from supervisor.worker.inspection.inspection import Inspection  # only replays need it
    from supervisor.worker.interception.patches_writes import keep_writes_apart

    root, progress = task.rundir.root, ground.progress
    keep_writes_apart(root)
    return Experiment(
        task.order.experiment,
        registry=ground.registry,
        controls=ground.controls,
        use_fp32=ordered.fp32,
        inspection=Inspection(root / "inspections", ground.registry, lambda: progress.last_batch),
    )


def _build_live(
    task: _Task, ground: _Ground, records: _Records, state: _State, judging: _Judging
) -> _Live:
    first_step = FirstStep(ground.journal, records.recorder)
    capture = BoundaryCapture(
        whole_state=state.whole,
        script_files=records.files.record,
        dispatcher=judging.dispatcher,
        pipeline=judging.pipeline,
    )
    # Another node's memory cannot be read when one of its ranks has failed.
    is_one_node = task.place.local_world_size == task.place.world_size
    memory = RankMemory(task.kept, task.place) if task.kept and is_one_node else None
    has_parting = not task.order.experiment and (task.place.is_alone or memory is not None)
    parting = PartingCheckpoint(
        task.settings.parting if has_parting else PartingSettings(enabled=False),
        turns=ground.turns,
        capture=capture,
        checkpointer=records.checkpointer,
        script_files=records.files.record,
        tape=records.tape,
        schedule=ground.schedule,
        health=ground.health,
        progress=ground.progress,
        warn=ground.warn,
        of_rank=memory,
    )
    boundary = Boundary(
        _listeners(task, ground, records, state, judging, first_step, capture, parting),
        ground.schedule,
        ground.barrier,
    )
    progress, barrier = ground.progress, ground.barrier
    budget = task.settings.fast_forward.reads_budget_mib * 2**20
    large = LargeReads(records.tape, budget, functools.partial(ground.warn, aloud=True))
    recording = Recording(records.tape, large)
    injector = FaultInjector(
        task.settings.faults,
        task.rundir.root / f"faults{task.file_suffix}.json",
        rank=task.rank,
    )
    lead = Lead(
        progress,
        NewTrainings(judging.dispatcher, state.snapshots, ground.controls, ground.group_journal),
        of_ranks=not task.place.is_alone,
    )
    steps = StepRecorder(
        registry=ground.registry,
        progress=progress,
        recorder=records.recorder,
        tape=records.tape,
        probes=judging.probes,
        update_controls=judging.updates,
        watch=state.watch,
        own_time=OwnTime(None if task.place.is_alone else OwnTimes(task.rundir.steps(task.rank))),
        warn=ground.warn,
    )
    monitor = Monitor(
        interception=ground.interception,
        progress=progress,
        registry=ground.registry,
        recording=recording,
        lead=lead,
        steps=steps,
        updates=UpdateHooks(
            progress=progress,
            lead=lead,
            steps=steps,
            dispatcher=judging.dispatcher,
            controls=judging.updates,
            boundary=boundary,
            watch=state.watch,
            injector=injector,
            barrier=barrier,
        ),
        census=state.census,
        update_controls=judging.updates,
        boundary=boundary,
        loaders=LoaderHooks(ground.interception, progress, recording, records.heartbeat, barrier),
        injector=injector,
        heartbeat=records.heartbeat,
        barrier=barrier,
    )
    return _Live(boundary=boundary, first_step=first_step, parting=parting, monitor=monitor)


def _listeners(
    task: _Task,
    ground: _Ground,
    records: _Records,
    state: _State,
    judging: _Judging,
    first_step: FirstStep,
    capture: BoundaryCapture,
    parting: PartingCheckpoint,
) -> list[BoundaryListener]:
    """What happens at a boundary, in this order."""
    settings, schedule, health, times = task.settings, ground.schedule, ground.health, StepTimes()
    corruption = CorruptionListener(
        check=StateCheck(ground.registry, state.watch),
        requests=state.looks,
        snapshots=state.snapshots,
        runner=judging.runner,
        alerts=judging.alerts,
        journal=ground.journal,
        policy=task.policy,
        warn=ground.warn,
        times=times,
        is_alone=task.place.is_alone,
    )
    snapshots = SnapshotListener(
        settings,
        turns=ground.turns,
        state=state.training,
        held=state.held,
        snapshots=state.snapshots,
        schedule=schedule,
        times=times,
        health=health,
        corruption=corruption,
        barrier=ground.barrier,
    )
    checkpoints = CheckpointListener(
        turns=ground.turns,
        checkpointer=records.checkpointer,
        capture=capture,
        schedule=schedule,
        times=times,
        health=health,
    )
    leaving = LeaveListener(
        settings.stop_after_steps,
        schedule=schedule,
        dispatcher=judging.dispatcher,
        checkpoints=checkpoints,
        health=health,
        barrier=ground.barrier,
    )
    watching: list[BoundaryListener] = []
    if isinstance(ground.progress.probe, TrailProbe):
        digests = StateDigests(
            task.rundir,
            task.rank,
            task.attempt,
            registry=ground.registry,
            probe=ground.progress.probe,
            state=state.training,
            held=state.held,
            census=state.census,
            use=ground.use,
        )
        watching.append(digests)
    if judging.experiment is not None:
        watching.append(judging.experiment)
    return [
        times,
        first_step,
        FirstVariables(state.held),
        corruption,
        judging.dispatcher,
        judging.retry,
        *watching,
        snapshots,
        checkpoints,
        parting,
        leaving,
    ]


def _build_resumption(
    task: _Task,
    ground: _Ground,
    records: _Records,
    state: _State,
    group: _Group,
    judging: _Judging,
    live: _Live,
) -> Resumption:
    restorer = StateRestorer(
        state=state.training,
        held=state.held,
        census=state.census,
        registry=ground.registry,
        controls=ground.controls,
        ordered=judging.ordered,
        pipeline=judging.pipeline,
        barrier=ground.barrier,
        fp32=task.order.fp32,
    )
    arrival = Arrival(
        attempt=task.attempt,
        place=task.place,
        order=task.order,
        restorer=restorer,
        agreement=group.agreement,
        files=records.files,
        ring=records.ring,
        ordered=judging.ordered,
        progress=ground.progress,
        monitor=live.monitor,
        boundary=live.boundary,
        first_step=live.first_step,
        retry=judging.retry,
        journal=ground.journal,
    )
    return Resumption(
        records.start,
        is_enabled=task.settings.fast_forward.enabled,
        tape=task.rundir.tape(task.rank),
        interception=ground.interception,
        registry=ground.registry,
        progress=ground.progress,
        loading=records.loading,
        files=records.files,
        heartbeat=records.heartbeat,
        census=state.census,
        journal=ground.journal,
        warn=ground.warn,
        arrival=arrival,
        barrier=_build_barrier(task) if records.start is not None else None,
    )


def _build_barrier(task: _Task) -> MeetingPlace | None:
    """Where the ranks of a replay wait for each other; a mapped file is one node's alone."""
    place = task.place
    if place.is_alone or place.local_world_size != place.world_size:
        return None
    path = task.rundir.board(task.attempt, place.node).with_suffix(".replay")
    try:
        return MeetingPlace(path, place.local_rank, place.local_world_size)
    except OSError:
        return None


def _build_session(
    ground: _Ground,
    records: _Records,
    group: _Group,
    judging: _Judging,
    live: _Live,
    resumption: Resumption,
) -> Session:
    ending = Ending(
        progress=ground.progress,
        health=ground.health,
        agreement=group.agreement,
        journal=ground.journal,
        monitor=live.monitor,
        dispatcher=judging.dispatcher,
        experiment=judging.experiment,
        samples=records.samples,
        probes=judging.probes,
        model_scene=judging.model_scene,
        parting=live.parting,
        saving=ground.barrier(live.parting.name),
        checkpointer=records.checkpointer,
        tape=records.tape,
        script_files=records.files.record,
    )
    return Session(
        interception=ground.interception,
        registry=ground.registry,
        controls=ground.controls,
        use=ground.use,
        progress=ground.progress,
        schedule=ground.schedule,
        monitor=live.monitor,
        parting=live.parting,
        resumption=resumption,
        ending=ending,
        barrier=ground.barrier,
        warn=ground.warn,
    )
