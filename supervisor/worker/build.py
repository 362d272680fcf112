"""How a worker is put together: from the context up, each piece of those before it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from supervisor.config import load_resolved_config
from supervisor.events.state_events import CheckpointRejected
from supervisor.own_process import KUBEFLOW_URL
from supervisor.pipeline import Pipeline
from supervisor.ranks import RankPlace
from supervisor.records import LOADS_ALL
from supervisor.storage.cases.case_advisor import CaseAdvisor, load_memory
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import AppliedRates
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.arrival import Arrival
from supervisor.worker.checkpoints.checkpoint_listener import (
    BoundaryCapture,
    CheckpointListener,
    MemoryListener,
)
from supervisor.worker.checkpoints.checkpointer import Checkpointer
from supervisor.worker.checkpoints.exit_checkpoint import ExitCheckpoint
from supervisor.worker.checkpoints.pre_treatment_checkpoint import PreTreatmentCheckpoint
from supervisor.worker.checkpoints.rank_memory import RankMemory, held_memory
from supervisor.worker.checkpoints.rank_writers import writer_of
from supervisor.worker.checkpoints.save_interval import SaveInterval
from supervisor.worker.checkpoints.snapshot_listener import SnapshotListener
from supervisor.worker.checkpoints.starting_point import find_starting_point
from supervisor.worker.checkpoints.whole_state import WholeState
from supervisor.worker.compute_check.compute_check import ComputeCheck, ComputeListener
from supervisor.worker.core.boundaries import BoundarySchedule, CheckRequests, StepTimes
from supervisor.worker.core.part import Part
from supervisor.worker.core.parts import Parts
from supervisor.worker.core.process_signs import Heartbeat
from supervisor.worker.core.progress import RecordingLimits
from supervisor.worker.core.step_probe import StepProbe
from supervisor.worker.core.trace import trace
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.corruption.corruption_listener import CorruptionListener
from supervisor.worker.corruption.state_check import StateCheck
from supervisor.worker.corruption.update_watch import UpdateWatch
from supervisor.worker.ending import Ending, Sickness
from supervisor.worker.files.attempt_files import AttemptFiles
from supervisor.worker.gradients.called_hooks import CalledHooks
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.inspection.state_digests import StateDigests, TrailProbe
from supervisor.worker.judging.anomaly_scene import AnomalyScene, ModelScene
from supervisor.worker.judging.step_judge import AlertTeller, NewTrainings, StepJudge
from supervisor.worker.leave_listener import LeaveListener
from supervisor.worker.live import Live
from supervisor.worker.live_healing import LiveHealing
from supervisor.worker.loading.loader_skipping import RecordedData
from supervisor.worker.loading.loading_proofs import LoadingProofs
from supervisor.worker.loading.placeholder_tracker import PlaceholderTracker
from supervisor.worker.mistakes.watch import MistakeWatch
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.probes.probes import Probes
from supervisor.worker.process.own_reports import OwnReports
from supervisor.worker.ranks.agreement import GroupSchedule
from supervisor.worker.ranks.exchanges import Exchanges, FirstAverages
from supervisor.worker.ranks.nodes_mailbox import node_barrier
from supervisor.worker.ranks.rank_context import RankContext
from supervisor.worker.ranks.several_ranks import OnlyWatching, SeveralRanks
from supervisor.worker.ranks.silenced_collectives import SilencedCollectives
from supervisor.worker.reads.recording import LargeReads, Recording
from supervisor.worker.replay import Replay
from supervisor.worker.resumption import Resumption, Route
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.script_state.script_state import ScriptStatePart
from supervisor.worker.script_state.user_tensors import FirstVariables, UserTensors
from supervisor.worker.sides import AllSides
from supervisor.worker.state_restorer import StateRestorer
from supervisor.worker.step_record.late_steps import LateSteps
from supervisor.worker.step_record.recorded_steps import RecordedSteps
from supervisor.worker.step_record.script_changes import ScriptChanges
from supervisor.worker.step_record.step_recorder import StepRecorder
from supervisor.worker.treatment.action_runner import (
    ActionRunner,
    Healing,
    Lender,
    OrderedTreatments,
)
from supervisor.worker.treatment.exact_retry import MOST as MOST_RETRIES
from supervisor.worker.treatment.exact_retry import ExactRetry
from supervisor.worker.treatment.trial_step import OlderWeights
from supervisor.worker.treatment.update_controls import update_controls_of
from supervisor.worker.user_api import UserApi
from supervisor.worker.worker_session import Session

ORDER: tuple[type[Part], ...] = (
    WholeState,
    StepTimes,
    RecordedSteps,
    FirstVariables,
    LoadingProofs,
    AttemptFiles,
    Exchanges,
    ScriptStatePart,  # the first script state is taken last of all that starts with the training
    CorruptionListener,  # nobody acts on or copies a sick state
    OrderedTreatments,
    StepJudge,  # nobody saves what is about to be thrown away
    OlderWeights,
    ExactRetry,
    StateDigests,
    Experiment,
    SnapshotListener,
    CheckpointListener,
    ExitCheckpoint,  # uses the memory of the last checkpoint, and skips what was just saved
    ComputeListener,  # arms the next step
    MemoryListener,
    SampleGuard,
    Probes,
    ModelScene,
    OwnReports,
    LiveHealing,
    LeaveListener,  # raises
)
"""In which order parts are called, at each of their moments."""


class BuiltWorker(WorkerContext):
    """All that a worker is made of. Each method makes what its name says of what is there.
    Parts are given themselves as `WorkerContext` alone, and what else they need one by one.

    Called once, when torch has been imported by the script, before the script goes on.

    Args:
        rundir, attempt: of the run.
        place: among the ranks that were started together.
        kept: see `Given.kept`.

    Raises:
        SupervisorError: an order, config or policy that cannot be read.
        OSError: the run directory cannot be written.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        attempt: int,
        place: RankPlace = RankPlace(),  # noqa: B008 (frozen)
        kept: Sequence[str] = (),
    ) -> None:
        settings = load_resolved_config(rundir.config_yaml)
        super().__init__(
            rundir,
            attempt,
            place,
            settings,
            BoundarySchedule() if place.is_alone else GroupSchedule(),
            (TrailProbe if settings.trail else StepProbe)(settings.in_environment),
        )
        is_one_node = place.local_world_size == place.world_size
        self.kept = kept if is_one_node else ()  # no other node's memory can be read
        self._starting_point()
        self._recorders()
        self._state()
        self._judging()
        self._treatment()
        self._parts()
        self._live()
        replay = self._session()  # not kept: it holds outputs of the script's
        drivers = [one for one in (self.live, replay) if one is not None]
        trace(drivers, self.parts.all, lambda: self.progress.steps_done)
        if self.start is None:
            self.ordered.from_nothing()
            self.files.begin_anew()

    def _starting_point(self) -> None:
        """Where this attempt begins, and how it comes there."""
        place, folder = self.place, self.rundir.checkpoints
        self.ring = CheckpointRing(folder, self.settings.checkpoint, on_rejected=self._rejected)
        self.start = find_starting_point(self, self.ring)
        self.route = None if self.start is None else Route.to(self, self.start)
        began = None if self.route is None or place.is_alone else self.route.began
        self.exchanges = Exchanges(is_alone=place.is_alone, began=began)
        self.averages = FirstAverages()

    def _rejected(self, checkpoint: Checkpoint, reason: str) -> None:
        self.warn.write(CheckpointRejected(step=checkpoint.step, reason=reason))

    def _recorders(self) -> None:
        """What is written into the run directory at every step, but for checkpoints."""
        rundir, rank, settings, start = self.rundir, self.rank, self.settings, self.start
        limits = RecordingLimits(self.progress, self.warn)
        self.replay_log = ReplayLogWriter(
            rundir.replay_log(rank),
            keep=start.replay_offset if start is not None else 0,
            budget=int(settings.fast_forward.tape_budget_mib * (1 << 20)),
            on_full=limits.replay_log_full,
        )
        self.recorder = FlightRecorder(
            rundir.steps(rank),
            self.attempt,
            on_left_out=limits.value_left_out,
            max_more_bytes=settings.observed_max_gib * (1 << 30),
            on_thinned=limits.values_thinned,
        )
        self.rates = AppliedRates(rundir.steps(rank))
        self.heartbeat = Heartbeat(rundir.alive(rank))
        self.files = AttemptFiles(
            self,
            self.replay_log,
            source=None if self.route is None else self.route.replay_log,
            starts=start is None,
            tell=limits.files_unknown,
        )
        skips = settings.fast_forward.skip_loading
        self.loading = LoadingProofs(
            self.call_state,
            promised=bool(skips),
            is_noted=skips is not False if self.route is None else self.route.notes_loading,
            may_leave_out=skips is not False and self.order.way != LOADS_ALL,
        )
        self.samples = SampleGuard(self)
        budget = settings.fast_forward.reads_budget_mib * 2**20
        reads = LargeReads(self.replay_log, budget, self.warn_aloud)
        self.recording = Recording(self.replay_log, reads)

    def _state(self) -> None:
        """Who reads the state, copies it, saves it, and sees that only optimizers change it."""
        registry, settings = self.registry, self.settings
        self.training, self.held = TrainingState(registry), UserTensors(registry)
        self.whole = WholeState(self, self.training, self.held)
        self.script_state = ScriptStatePart(registry, self.breakers)
        self.memory = held_memory(self, self.kept)
        writer = writer_of(
            self,
            self.ring,
            self._sync,
            may_go_back=lambda: self.may_change() and self.order.retries < MOST_RETRIES,
        )
        self.breakers(CheckpointListener.name, when_off=writer.saves_no_more)
        self.checkpointer = Checkpointer(
            writer,
            settings.checkpoint,
            self.group_journal,
            memory=self.memory,
            puts_off=self.place.is_alone,
            interval=SaveInterval.of(self),
        )
        self.snapshots = SnapshotRing(settings.snapshot, self.memory, self.checkpointer.before)
        self.watch, self.looks = UpdateWatch(registry), CheckRequests(self.schedule)
        self.compute = ComputeCheck(registry, may_replace=self.may_change)
        saving = (SnapshotListener.name, CheckpointListener.name, ExitCheckpoint.name)
        self.only_watching = OnlyWatching(self, self.snapshots, saving)
        self.ranks = RankContext.of(self, self.exchanges, self.memory, self.only_watching.start)

    def _sync(self) -> None:
        """Before a checkpoint is published: what a replay to it will read."""
        self.replay_log.sync()
        OUTSIDE.sync()

    def _judging(self) -> None:
        """Who finds that something is wrong, and tells it."""
        rundir, settings = self.rundir, self.settings
        advisor = CaseAdvisor(load_memory(rundir)) if self.policy.case_library else None
        self.pipeline = pipeline = Pipeline(settings, self.policy, advisor=advisor)
        self.probes, self.model_scene = Probes(self), ModelScene(self)
        scene = AnomalyScene(
            rundir,
            self.rank,
            settings.capture,
            self.ring,
            self.model_scene,
            lambda: pipeline.detectors,
        )
        self.alerts = AlertTeller(self, self.probes, scene)

    def _treatment(self) -> None:
        """Who decides about an update, and who acts."""
        self._actions()
        ring, recorder, runner = self.ring, self.recorder, self.runner
        self.retry = ExactRetry(self, ring, recorder, self.looks, runner)
        self.step_judge = StepJudge(self, self.pipeline, self.alerts, runner, recorder, self.retry)
        self.ordered = OrderedTreatments(self, self.runner, self.pipeline)
        self.capture = BoundaryCapture(
            judge_waiting=self.step_judge.judge_waiting,
            save=lambda point: self.parts.save(point),
            held=self.held,
            replay_log=self.replay_log,
            script_files=self.files.record,
            progress=self.progress,
        )

    def _actions(self) -> None:
        healing = Healing(self, self.pipeline, self.snapshots, self.held)
        self.trial = OlderWeights(self, self.training, self.memory, self.pipeline, self.recorder)
        pre_treatment = PreTreatmentCheckpoint(
            self, lambda: self.capture.state_and_meta(), self.checkpointer
        )
        self.runner = ActionRunner(
            self,
            Lender(
                self,
                self.training,
                self.snapshots,
                healing,
                pre_treatment,
                begin_trial=self.trial.start,
                tell_ranks=self.ranks.agreement.tell,
            ),
            self.watch.begin_anew,
            self.ranks.agreement,
            self.pipeline,
        )
        self.updates = update_controls_of(
            self,
            self.samples,
            healing,
            self.looks,
            self.runner,
            lambda factor: self.rates.append(self.recorder.rows - 1, factor),
        )

    def _parts(self) -> None:
        """All parts, in their order."""
        probe, times, checkpointer = self.progress.probe, StepTimes(), self.checkpointer
        check = StateCheck(self.registry, self.watch)
        corruption = CorruptionListener(
            self, check, self.looks, self.snapshots, self.runner, self.alerts, times
        )
        checkpoints = CheckpointListener(self, checkpointer, self.capture, times)
        of_rank = RankMemory(self.kept, self.place, self.memory) if self.kept else None
        healing = LiveHealing(self, self.ranks, self.exchanges, self.snapshots.clear)
        soon = healing.follow(of_rank, self.memory)
        self.exit_checkpoint = ExitCheckpoint(self, self.capture, checkpointer, of_rank, soon)
        found: list[Part] = [
            *(self.whole, times, FirstVariables(self.held), self.loading, self.files),
            *(self.exchanges, self.script_state, corruption, self.ordered, self.step_judge),
            *(self.trial, self.retry, self.samples, self.probes, self.model_scene, healing),
            RecordedSteps(self, self.recorder, is_retry=self.order.retry_until is not None),
            SnapshotListener(self, self.whole, self.snapshots, corruption),
            *(checkpoints, self.exit_checkpoint, LeaveListener(self, self.step_judge, checkpoints)),
            ComputeListener(self, self.compute, self.alerts),
            MemoryListener(self, self.memory, self.snapshots, checkpointer),
        ]
        if isinstance(probe, TrailProbe):
            found.append(StateDigests(self, probe, self.training, self.held, self.script_state))
        if self.is_experiment:
            found.append(Experiment(self, self.ordered.fp32))
        if KUBEFLOW_URL in os.environ:
            found.append(OwnReports(self.journal))
        found.sort(key=lambda part: ORDER.index(type(part)))
        self.parts = Parts(found, self.schedule, self.breakers, self.journal)

    def _live(self) -> None:
        """Who answers the training hooks while the script trains."""
        is_on = self.settings.probes.enabled
        steps = StepRecorder(
            self,
            self.recorder,
            self.replay_log,
            self.probes,
            self.updates,
            ScriptChanges(self.registry, self.watch, self.snapshots, is_on=is_on),
        )
        self.called_hooks = CalledHooks(self, self.replay_log)
        late = LateSteps(
            self, steps, self.step_judge, self.pipeline, self.updates, self.watch, self.probes
        )
        self.live = Live(
            self,
            mistakes=MistakeWatch.of(self, self.alerts, self.averages.idle),
            parts=self.parts,
            recording=self.recording,
            steps=steps,
            step_judge=self.step_judge,
            updates=self.updates,
            trainings=NewTrainings(self, self.step_judge, self.snapshots),
            trial=self.trial,
            watch=self.watch,
            compute=self.compute,
            gradient_hooks=self.called_hooks,
            exchanges=self.exchanges,
            averages=self.averages,
            heartbeat=self.heartbeat,
            late=late,
        )

    def _session(self) -> Replay | None:
        """How this attempt comes to where it begins, and who is asked from outside: by torch's
        patched functions, the process and the script."""
        replay = None if self.route is None else self._replay(self.route)
        self.sides = AllSides(
            self, self.live, replay, self.recording, self.called_hooks, self.heartbeat
        )
        restorer = StateRestorer(self, self.training, self.held, self.script_state, self.ordered)
        arrival = Arrival(self, self.ranks, restorer, self.parts, self.ring, self.live)
        go_live = self.sides.go_live
        self.resumption = Resumption(self, self.route, replay, arrival, self.files, go_live)
        live, record = self.live, self.files.record
        self.session = Session(
            live=live,
            hooks=self.sides.hooks,
            updates=self.updates,
            exit_checkpoint=self.exit_checkpoint,
            resumption=self.resumption,
            sickness=Sickness(self, self.pipeline, self.samples, lambda: live.main_optimizer),
            ending=Ending(self, self.parts, self.ranks, self.checkpointer, self.replay_log, record),
            grace_s=self.settings.watchdog.grace_s,
        )
        self.api = UserApi(
            self, self.session, self.step_judge, self.pipeline, self.alerts, self.sides.reads
        )
        judge_waiting = self.step_judge.judge_waiting
        self.several_ranks = SeveralRanks(self, self.ranks, judge_waiting, self.only_watching)
        return replay

    def _replay(self, route: Route) -> Replay:
        """Who answers until the script has come to the checkpoint."""
        start, meta = route.start, route.start.checkpoint.meta
        skips = meta.get("pure_loading", []) if self.loading.may_leave_out else []
        guard = None
        if skips and route.problem is None:
            guard = PlaceholderTracker(self.call_state, lambda why: self.resumption.load_all(why))
        collectives = None
        if not self.place.is_alone:
            collectives = SilencedCollectives(node_barrier(self), self.exchanges, route.beginning)
        return Replay(
            call_state=self.call_state,
            registry=self.registry,
            replay_log=route.replay_log,
            target=start.checkpoint.step,
            at_update=meta.get("at_update") is True,
            update_result=start.state.get("update_result"),
            skips=skips,
            data=RecordedData(start.state.get("held", {}), start.state.get("told_states")),
            guard=guard,
            collectives=collectives,
            count=route.count,
            mismatch=route.problem,
            arrive=lambda done, why: self.resumption.arrive(done, why),
            before_training=self.parts.training_starts,
            before_first_update=self.script_state.keep_small_values,
            heartbeat=self._beat,
        )

    def _beat(self, steps_done: int) -> None:
        self.progress.replays(steps_done)
        self.heartbeat.replayed(steps_done)
