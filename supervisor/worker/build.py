"""How a worker is put together: from the ground up, each piece of those before it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Sequence

from supervisor.actions.base import ActionContext
from supervisor.actions.catalogue import build_actions
from supervisor.actions.controls import Controls
from supervisor.codes import Found
from supervisor.config import load_resolved_config, load_resolved_policy
from supervisor.detectors.registry import load_alert_handlers
from supervisor.errors import CheckpointError
from supervisor.events.state_events import CheckpointRejected, StateFound
from supervisor.fault_injection.injector import FaultInjector
from supervisor.held_memory import BUFFER, PLACES, HeldMemory
from supervisor.pipeline import Pipeline
from supervisor.ranks import RankPlace
from supervisor.records import LOADS_ALL, Decision
from supervisor.risk_lines import RiskLines
from supervisor.settings import ComputeCheckSettings, PartingSettings
from supervisor.storage.cases.case_advisor import CaseAdvisor, load_memory
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.journal.journal import AlertLog, Journal, SilentAlertLog, SilentJournal
from supervisor.storage.run.boards import MeetingPlace, RankNotes
from supervisor.storage.run.kept_memory import PLACES as PLACES_OF_RANK
from supervisor.storage.run.run_state import load_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.storage.script_files.set_aside import SetAside
from supervisor.storage.steps.applied_rates import AppliedRates, OwnTimes
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.tape import TapeWriter
from supervisor.training_state.registry import Registry
from supervisor.training_state.replicas import parameters_alike
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.arrival import Arrival
from supervisor.worker.checkpoints.checkpoint_listener import (
    BoundaryCapture,
    CheckpointListener,
    MemoryListener,
)
from supervisor.worker.checkpoints.checkpoint_writer import CheckpointWriter, SingleWriter
from supervisor.worker.checkpoints.checkpointer import Checkpointer
from supervisor.worker.checkpoints.parting_checkpoint import PartingCheckpoint
from supervisor.worker.checkpoints.pre_treatment_checkpoint import PreTreatmentCheckpoint
from supervisor.worker.checkpoints.rank_memory import RankMemory
from supervisor.worker.checkpoints.rank_writers import FollowerWriter, LeadWriter, SplitReplicas
from supervisor.worker.checkpoints.save_interval import SaveInterval
from supervisor.worker.checkpoints.snapshot_listener import SnapshotListener
from supervisor.worker.checkpoints.starting_point import find_starting_point
from supervisor.worker.checkpoints.whole_state import WholeState
from supervisor.worker.compute_check.compute_check import ComputeCheck, ComputeListener
from supervisor.worker.core.boundaries import (
    BoundarySchedule,
    GroupTurns,
    LookRequests,
    StepTimes,
    Turns,
)
from supervisor.worker.core.error_barrier import ErrorBarrier
from supervisor.worker.core.interception_state import InterceptionState
from supervisor.worker.core.part import Part, Sides
from supervisor.worker.core.parts import Parts
from supervisor.worker.core.process_signs import Heartbeat
from supervisor.worker.core.progress import Progress, RecordingLimits, RunWarnings, ScriptUse
from supervisor.worker.core.run_health import RunHealth
from supervisor.worker.core.step_probe import StepProbe
from supervisor.worker.core.trace import trace
from supervisor.worker.core.training_hooks import ScriptReads, TrainingHooks
from supervisor.worker.corruption.corruption_listener import CorruptionListener
from supervisor.worker.corruption.state_check import StateCheck
from supervisor.worker.corruption.update_watch import UpdateWatch
from supervisor.worker.ending import Ending, Sickness
from supervisor.worker.files.replayed_files import ReplayedFiles
from supervisor.worker.files.settled_files import AttemptFiles, SettledFiles
from supervisor.worker.files.written_files import FileSizes
from supervisor.worker.gradients.called_hooks import CalledHooks, GradientHooks
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.inspection.inspection import Inspection
from supervisor.worker.inspection.state_digests import StateDigests, TrailProbe
from supervisor.worker.judging.anomaly_scene import AnomalyScene, ModelScene
from supervisor.worker.judging.dispatcher import AlertTeller, Dispatcher, NewTrainings
from supervisor.worker.leave_listener import LeaveListener
from supervisor.worker.live import Live
from supervisor.worker.loading.loader_hooks import LoaderHooks
from supervisor.worker.loading.loader_skipping import RecordedData
from supervisor.worker.loading.loading_hooks import LoadingHooks
from supervisor.worker.loading.loading_proofs import LoadingProofs
from supervisor.worker.loading.placeholder_tracker import PlaceholderTracker
from supervisor.worker.mistakes.watch import MistakeWatch
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.probes.probes import Probes
from supervisor.worker.random_state.random_states import LooksAtRandom
from supervisor.worker.ranks.agreement import Agreement, GroupAgreement, GroupSchedule
from supervisor.worker.ranks.collective_records import CollectiveCount, CollectiveRecords
from supervisor.worker.ranks.exchanges import Exchanges, FirstAverages
from supervisor.worker.ranks.nodes_board import NodeLink, board_of
from supervisor.worker.ranks.rank_context import RankContext
from supervisor.worker.ranks.several_ranks import OnlyWatching, SeveralRanks
from supervisor.worker.ranks.silenced_collectives import SilencedCollectives
from supervisor.worker.ranks.waiting_ranks import OwnTime, WaitingRanks
from supervisor.worker.reads.recording import LargeReads, Recording
from supervisor.worker.reads.script_reads import LiveReads
from supervisor.worker.replay import Replay
from supervisor.worker.resumption import Resumption, Route
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.script_state.script_census import ScriptCensus
from supervisor.worker.script_state.user_tensors import FirstVariables, UserTensors
from supervisor.worker.state_restorer import StateRestorer
from supervisor.worker.step_record.input_watch import InputWatch
from supervisor.worker.step_record.recorded_steps import RecordedSteps
from supervisor.worker.step_record.script_changes import ScriptChanges
from supervisor.worker.step_record.step_recorder import StepRecorder
from supervisor.worker.treatment.action_runner import ActionRunner, Healing, OrderedTreatments
from supervisor.worker.treatment.exact_retry import MOST as MOST_RETRIES
from supervisor.worker.treatment.exact_retry import ExactRetry
from supervisor.worker.treatment.trial_step import OlderWeights
from supervisor.worker.treatment.update_controls import (
    FollowerGuard,
    SkippedUpdates,
    UpdateControls,
)
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
    ScriptCensus,  # the first census is taken last of all that starts with the training
    CorruptionListener,  # nobody acts on or copies a sick state
    OrderedTreatments,
    Dispatcher,  # nobody saves what is about to be thrown away
    OlderWeights,
    ExactRetry,
    StateDigests,
    Experiment,
    SnapshotListener,
    CheckpointListener,
    PartingCheckpoint,  # uses the memory of the last checkpoint, and skips what was just saved
    ComputeListener,  # arms the next step
    MemoryListener,
    SampleGuard,
    Probes,
    ModelScene,
    LeaveListener,  # raises
)
"""In which order parts are called, at each of their moments."""


class BuiltWorker:
    """All that a worker is made of. Each method makes what its name says of what is there.

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
        self.rundir, self.attempt, self.place, self.rank = rundir, attempt, place, place.rank
        self.settings = load_resolved_config(rundir.config_yaml)
        self.policy = load_resolved_policy(rundir.policy_yaml)
        self.order = load_order(rundir, attempt)
        self.is_experiment = bool(self.order.experiment)
        self.is_one_node = place.local_world_size == place.world_size
        self.kept = kept if self.is_one_node else ()  # no other node's memory can be read
        # Of the files that each rank has for itself, beside those of the first rank.
        self.suffix = "" if place.leads else f"_rank_{place.rank}"
        self._ground()
        self._recorders()
        self._state()
        self._agreement()
        self._judging()
        self._treatment()
        self._parts()
        self._live()
        self._session()
        drivers = [one for one in (self.live, self.replay) if one is not None]
        trace(drivers, self.parts.all, lambda: self.progress.steps_done)
        if self.start is None:
            self.ordered.from_nothing()
            self.files.record.begin_anew()

    def _ground(self) -> None:
        """What nearly everything writes to or reads, and where this attempt begins."""
        settings, is_alone = self.settings, self.place.is_alone
        self.registry, self.controls, self.use = Registry(), Controls(), ScriptUse()
        self.interception = InterceptionState()
        self.progress = progress = Progress(
            (TrailProbe if settings.trail else StepProbe)(settings.in_environment)
        )
        self.journal = Journal(
            self.rundir.rank_journal(self.rank),
            attempt=self.attempt,
            rank=self.rank,
            limits=settings.limits,
        )
        # For what all ranks find, decide and do alike: the first rank writes it.
        self.group_journal = self.journal if self.place.leads else SilentJournal()
        self.warn = RunWarnings(self.journal, progress)
        self.barrier = ErrorBarrier(
            self.journal, self.interception.turn_off, progress.tape_is_broken
        )
        self.schedule = BoundarySchedule() if is_alone else GroupSchedule()
        self.turns = (Turns if is_alone else GroupTurns)(self.schedule)
        self.health = RunHealth(RiskLines.of(self.policy))
        self.ring = CheckpointRing(
            self.rundir.checkpoints, settings.checkpoint, on_rejected=self._rejected
        )
        self.start = find_starting_point(self.order, self.ring, self.journal, self.place)
        if self.place.leads:
            with contextlib.suppress(CheckpointError):  # they stay what they are: for a person
                self.ring.leave_course(-1 if self.start is None else self.start.checkpoint.step)

        self.route = None
        if self.start is not None:
            self.route = Route.to(
                self.start,
                self.rundir.tape(self.rank),
                order=self.order,
                ranks=self.place.world_size,
                is_enabled=settings.fast_forward.enabled,
            )
        began = None if self.route is None or is_alone else self.route.began
        self.exchanges = Exchanges(is_alone=is_alone, began=began)
        self.averages = FirstAverages()

    def _rejected(self, checkpoint: Checkpoint, reason: str) -> None:
        self.journal.write(CheckpointRejected(step=checkpoint.step, reason=reason))

    def _recorders(self) -> None:
        """What is written into the run directory at every step, but for checkpoints."""
        rundir, rank, settings, start = self.rundir, self.rank, self.settings, self.start
        limits = RecordingLimits(self.progress, self.warn)
        self.tape = TapeWriter(
            rundir.tape(rank),
            keep=start.tape_offset if start is not None else 0,
            budget=int(settings.fast_forward.tape_budget_mib * (1 << 20)),
            on_full=limits.tape_full,
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
        record = ScriptFiles(rundir, rank, self.progress.has_begun, limits.files_unknown)
        replayed = ReplayedFiles(SetAside(rundir, rank), record)
        self.files = AttemptFiles(
            attempt=self.attempt,
            is_replay=self.is_experiment,
            sizes=FileSizes(
                self.tape,
                rundir.root / f"appended{self.suffix}.json",
                begins_again=self.attempt > 1 and start is None,
                source=None if self.route is None else self.route.tape,
            ),
            record=record,
            replayed=replayed,
            settled=SettledFiles(replayed),
            set_aside=replayed.aside,
            journal=self.journal,
        )
        skips = settings.fast_forward.skip_loading
        self.loading = LoadingProofs(
            self.interception,
            promised=bool(skips),
            is_noted=skips is not False if self.route is None else self.route.notes_loading,
            may_leave_out=skips is not False and self.order.way != LOADS_ALL,
        )
        self.samples = SampleGuard(
            rundir.root / "bad_samples.jsonl",
            self.attempt,
            functools.partial(self.warn, aloud=True),
            self.interception,
            self.progress,
        )
        budget = settings.fast_forward.reads_budget_mib * 2**20
        large = LargeReads(self.tape, budget, functools.partial(self.warn, aloud=True))
        self.recording = Recording(self.tape, large)

    def _state(self) -> None:
        """Who reads the state, copies it, saves it, and sees that only optimizers change it."""
        registry, settings = self.registry, self.settings
        self.training, self.held = TrainingState(registry), UserTensors(registry)
        self.whole = WholeState(self.training, self.held, self.progress, self.warn)
        self.census = ScriptCensus(registry, self.barrier)
        self.memory = HeldMemory(
            settings.snapshot,
            most=self.order.most_copies,
            first={BUFFER: 1, **({PLACES: PLACES_OF_RANK} if self.kept else {})},
            ranks=self.place.local_world_size,
            tell=self._tell_copies,
        )
        writer = self._writer()
        self.barrier(CheckpointListener.name, when_off=writer.saves_no_more)
        self.checkpointer = Checkpointer(
            writer,
            settings.checkpoint,
            self.group_journal,
            memory=self.memory,
            puts_off=self.place.is_alone,
            interval=SaveInterval(
                settings.checkpoint,
                time.monotonic(),
                failures=self.order.failures,
                trained_s=self.order.trained_s,
            ),
        )
        self.snapshots = SnapshotRing(settings.snapshot, self.memory, self.checkpointer.before)
        self.watch, self.looks = UpdateWatch(registry), LookRequests(self.schedule)
        policy = self.policy
        self.compute = ComputeCheck(registry, may_replace=lambda: not policy.observe_only)

    def _tell_copies(self, copies: int) -> None:
        step = self.progress.steps_done
        self.journal.write(StateFound(step=step, found=Found.COPIES_HELD, count=copies))

    def _writer(self) -> CheckpointWriter:
        """Of checkpoints, for this rank's place."""
        place, attempt, registry = self.place, self.attempt, self.registry
        if place.is_alone:
            return SingleWriter(self.ring, self._sync)
        if not place.leads:
            return FollowerWriter(
                self.ring,
                self._sync,
                place=place,
                attempt=attempt,
                alike=lambda: parameters_alike(registry.models),
            )
        policy, retries = self.policy, self.order.retries
        replicas = SplitReplicas(
            ring=self.ring,
            schedule=self.schedule,
            journal=self.journal,
            warn=self.warn,
            may_go_back=lambda: not policy.observe_only and retries < MOST_RETRIES,
        )
        return LeadWriter(
            self.ring, self._sync, place=place, attempt=attempt, on_split=replicas.found
        )

    def _sync(self) -> None:
        """Before a checkpoint is published: what a replay to it will read."""
        self.tape.sync()
        OUTSIDE.sync()

    def _agreement(self) -> None:
        """What several ranks agree by; one alone agrees with itself."""
        place, schedule, turns = self.place, self.schedule, self.turns
        self.only_watching = OnlyWatching(
            policy=self.policy,
            snapshots=self.snapshots,
            saving=(SnapshotListener.name, CheckpointListener.name, PartingCheckpoint.name),
            barrier=self.barrier,
            warn=self.warn,
        )
        agreement = Agreement()
        self.link = NodeLink(place.node, place.nodes) if place.nodes > 1 else None
        self.waiting = None
        if isinstance(schedule, GroupSchedule) and isinstance(turns, GroupTurns):
            notes = self.rundir.rank_notes(self.attempt, place.node)
            self.waiting = WaitingRanks(
                RankNotes(notes, place.local_rank, place.local_world_size), self.exchanges
            )
            self.board = board_of(self.rundir.board(self.attempt, place.node), place, self.link)
            agreement = GroupAgreement(
                self.board,
                schedule,
                turns,
                self.progress,
                self.waiting,
                self.memory,
                on_lost=self._lost,
                on_split=self._split,
            )
        self.ranks = RankContext(place=place, agreement=agreement, schedule=schedule)

    def _lost(self) -> None:
        place, why = self.place, "the ranks do not make the same steps"
        if self.waiting is not None and self.waiting.found is not None:
            other = place.rank - place.local_rank + self.waiting.found
            why += f" (rank {other} waits for what rank {place.rank} exchanges behind its update)"
        elif self.board.was_left:
            why = "another rank makes no more steps with this one"
        self.only_watching.begin(
            f"{why}: from here on this one is only watched: nothing is treated or saved"
        )

    def _split(self, step: int) -> None:
        why = f"the ranks have decided differently before step {step}"
        self.warn(f"{why}: all begin again from the last checkpoint", aloud=self.place.leads)
        self.schedule.ask_for_restart(why)

    def _judging(self) -> None:
        """Who finds that something is wrong, and tells it."""
        rundir, settings, registry, leads = (
            self.rundir,
            self.settings,
            self.registry,
            self.place.leads,
        )
        advisor = CaseAdvisor(load_memory(rundir)) if self.policy.case_library else None
        self.pipeline = pipeline = Pipeline(settings, self.policy, advisor=advisor)
        self.probes = Probes(
            settings.probes,
            registry=registry,
            interception=self.interception,
            journal=self.journal,
            warn=self.warn,
        )
        self.model_scene = ModelScene(rundir, self.rank, lambda: registry.models, self.warn)
        self.alerts = AlertTeller(
            self.group_journal,
            AlertLog(rundir.alerts) if leads else SilentAlertLog(),
            handlers=load_alert_handlers(settings.alert_handlers) if leads else [],
            probes=self.probes,
            scene=AnomalyScene(
                rundir,
                self.rank,
                settings.capture,
                self.ring,
                self.model_scene,
                lambda: pipeline.detectors,
            ),
            progress=self.progress,
            barrier=self.barrier,
            warn=self.warn,
        )

    def _treatment(self) -> None:
        """Who decides about an update, and who acts."""
        self._actions()
        is_run_alone = self.place.is_alone and not self.is_experiment
        self.retry = ExactRetry(
            policy=self.policy,
            order=self.order,
            is_possible=is_run_alone and self.settings.fast_forward.enabled,
            ring=self.ring,
            recorder=self.recorder,
            looks=self.looks,
            runner=self.runner,
            warn=self.warn,
        )
        self.dispatcher = Dispatcher(
            pipeline=self.pipeline,
            alerts=self.alerts,
            runner=self.runner,
            recorder=self.recorder,
            health=self.health,
            retry=self.retry,
            warn=self.warn,
            barrier=self.barrier,
        )
        self.ordered = OrderedTreatments(
            self.order,
            controls=self.controls,
            registry=self.registry,
            runner=self.runner,
            pipeline=self.pipeline,
            barrier=self.barrier,
        )
        self.capture = BoundaryCapture(
            judge_waiting=self.dispatcher.judge_waiting,
            save=lambda point: self.parts.save(point),
            held=self.held,
            tape=self.tape,
            script_files=self.files.record,
            progress=self.progress,
        )

    def _actions(self) -> None:
        healing = Healing(
            pipeline=self.pipeline,
            registry=self.registry,
            snapshots=self.snapshots,
            held=self.held,
            warn=self.warn,
        )
        if self.is_experiment or not self.place.is_alone:
            self.barrier(OlderWeights.name).turn_off()
        self.trial = OlderWeights(
            state=self.training,
            memory=self.memory,
            progress=self.progress,
            pipeline=self.pipeline,
            recorder=self.recorder,
            barrier=self.barrier,
        )
        pre_treatment = PreTreatmentCheckpoint(
            whole_state=lambda: self.capture.state_and_meta(),
            checkpointer=self.checkpointer,
            progress=self.progress,
            run=self.rundir.root,
            warn=self.warn,
        )
        self.runner = ActionRunner(
            build_actions(),
            functools.partial(self._lent, healing, pre_treatment),
            state_changed=self.watch.begin_anew,
            schedule=self.schedule,
            agreement=self.ranks.agreement,
            pipeline=self.pipeline,
            journal=self.group_journal,
            warn=self.warn,
        )
        skipped = SkippedUpdates(
            self.group_journal,
            self.progress,
            self.samples,
            healing,
            self.looks,
            self.order.skip_steps,
        )
        followers = FollowerGuard(self.policy, self.progress, self.health, self.runner)
        self.updates = UpdateControls(
            self.controls,
            self.use,
            skipped.left_out,
            followers.leaves_out,
            lambda factor: self.rates.append(self.recorder.rows - 1, factor),
            self.order.skip_steps,
        )

    def _lent(
        self, healing: Healing, pre_treatment: PreTreatmentCheckpoint, decision: Decision
    ) -> ActionContext:
        """What is lent to one action for one call."""
        use, schedule = self.use, self.schedule
        return ActionContext(
            step=decision.step,
            policy=self.policy,
            decision=decision,
            controls=self.controls,
            registry=self.registry,
            state=self.training,
            snapshots=self.snapshots,
            recent_grad_norms=self.health.recent_grad_norms,
            keep_state=pre_treatment.keep,
            thrown_away=pre_treatment.thrown_away,
            put_back_held=healing.put_back_held,
            save_checkpoint=schedule.ask_for_checkpoint,
            request_restart=schedule.ask_for_restart,
            request_stop=schedule.ask_for_stop,
            pipeline_restore=healing.after_rollback,
            begin_trial=self.trial.begin,
            tell_ranks=self.ranks.agreement.tell,
            skip_batches=use.leave_out_batches if use.batches else None,
            script_clips=use.max_norm is not None,
            uses_batch_size=use.batch_size,
            uses_autocast=use.autocast,
        )

    def _parts(self) -> None:
        """All parts, in their order."""
        probe, times = self.progress.probe, StepTimes()
        corruption = CorruptionListener(
            check=StateCheck(self.registry, self.watch),
            requests=self.looks,
            snapshots=self.snapshots,
            runner=self.runner,
            alerts=self.alerts,
            policy=self.policy,
            warn=self.warn,
            times=times,
        )
        found: list[Part] = [
            *(self.whole, times, FirstVariables(self.held), self.loading, self.files),
            *(self.exchanges, self.census, corruption, self.ordered, self.dispatcher),
            *(self.trial, self.retry, self.samples, self.probes, self.model_scene),
            RecordedSteps(
                self.journal,
                self.recorder,
                self.controls,
                is_retry=self.order.retry_until is not None,
            ),
            *self._saving(times, corruption),
            ComputeListener(
                ComputeCheckSettings() if self.is_experiment else self.settings.compute_check,
                turns=self.turns,
                check=self.compute,
                alerts=self.alerts,
                warn=self.warn,
            ),
            MemoryListener(
                self.settings.checkpoint,
                turns=self.turns,
                memory=self.memory,
                snapshots=self.snapshots,
                checkpointer=self.checkpointer,
                journal=self.group_journal,
            ),
        ]
        if isinstance(probe, TrailProbe):
            self.rundir.make(self.rundir.trail(self.rank).parent)
            found.append(
                StateDigests(
                    self.rundir.trail(self.rank),
                    self.attempt,
                    probe=probe,
                    state=self.training,
                    held=self.held,
                    census=self.census,
                    use=self.use,
                )
            )
        if self.is_experiment:
            found.append(self._experiment())
        found.sort(key=lambda part: ORDER.index(type(part)))
        self.parts = Parts(found, self.schedule, self.barrier, self.journal)

    def _saving(self, times: StepTimes, corruption: CorruptionListener) -> list[Part]:
        """Copies and checkpoints, and who leaves with one."""
        snapshots = SnapshotListener(
            self.settings,
            turns=self.turns,
            whole=self.whole,
            snapshots=self.snapshots,
            times=times,
            health=self.health,
            corruption=corruption,
            barrier=self.barrier,
        )
        checkpoints = CheckpointListener(
            turns=self.turns,
            checkpointer=self.checkpointer,
            capture=self.capture,
            schedule=self.schedule,
            times=times,
            health=self.health,
        )
        memory = RankMemory(self.kept, self.place, self.memory) if self.kept else None
        has_parting = not self.is_experiment and (self.place.is_alone or memory is not None)
        self.parting = PartingCheckpoint(
            self.settings.parting if has_parting else PartingSettings(enabled=False),
            turns=self.turns,
            capture=self.capture,
            checkpointer=self.checkpointer,
            schedule=self.schedule,
            health=self.health,
            warn=self.warn,
            of_rank=memory,
        )
        leaving = LeaveListener(
            self.settings.stop_after_steps,
            schedule=self.schedule,
            dispatcher=self.dispatcher,
            checkpoints=checkpoints,
            health=self.health,
            barrier=self.barrier,
        )
        return [snapshots, checkpoints, self.parting, leaving]

    def _experiment(self) -> Part:
        """What a replay for `supervisor explain` changes."""
        from supervisor.worker.inspection.patches_experiment import keep_writes_apart

        progress = self.progress
        keep_writes_apart(self.rundir.root)
        return Experiment(
            self.order.experiment,
            registry=self.registry,
            controls=self.controls,
            use_fp32=self.ordered.fp32,
            inspection=Inspection(
                self.rundir.inspections(self.rank), self.registry, lambda: progress.last_batch
            ),
            rank=self.rank,
        )

    def _live(self) -> None:
        """Who answers the training hooks while the script trains."""
        injector = FaultInjector(
            self.settings.faults, self.rundir.root / f"faults{self.suffix}.json", rank=self.rank
        )
        is_on = self.settings.probes.enabled
        steps = StepRecorder(
            progress=self.progress,
            recorder=self.recorder,
            tape=self.tape,
            probes=self.probes,
            update_controls=self.updates,
            inputs=InputWatch(is_on=is_on, tell=self.warn),
            changes=ScriptChanges(self.registry, self.watch, self.snapshots, is_on=is_on),
            warn=self.warn,
        )
        self.called_hooks = CalledHooks(self.tape, self.interception, self.progress)
        mistakes = MistakeWatch(
            self.settings.mistakes,
            self.registry,
            world_size=self.place.world_size,
            tells=self.place.leads and not self.is_experiment,
            alerts=self.alerts,
            warn=self.warn,
            barrier=self.barrier,
            has_tensor_hooks=lambda: self.interception.has_tensor_hooks,
            idle_wrappers=self.averages.idle,
            steps_done=lambda: self.progress.steps_done,
            stop=self.schedule.ask_to_stop_saved,
        )
        self.live = Live(
            mistakes=mistakes,
            interception=self.interception,
            progress=self.progress,
            registry=self.registry,
            parts=self.parts,
            recording=self.recording,
            steps=steps,
            dispatcher=self.dispatcher,
            updates=self.updates,
            trainings=NewTrainings(
                self.dispatcher, self.snapshots, self.controls, self.group_journal
            ),
            own_time=OwnTime(
                None if self.place.is_alone else OwnTimes(self.rundir.steps(self.rank))
            ),
            trial=self.trial,
            watch=self.watch,
            compute=self.compute,
            gradient_hooks=self.called_hooks,
            exchanges=self.exchanges,
            averages=self.averages,
            heartbeat=self.heartbeat,
            injector=injector,
            barrier=self.barrier,
            of_ranks=not self.place.is_alone,
        )

    def _session(self) -> None:
        """How this attempt comes to where it begins, and who is asked from outside: by torch's
        patched functions, the process and the script."""
        self.replay = replay = None if self.route is None else self._replay(self.route)
        self._sides(replay)
        arrival = Arrival(
            ranks=self.ranks,
            order=self.order,
            restorer=StateRestorer(
                state=self.training,
                held=self.held,
                census=self.census,
                registry=self.registry,
                ordered=self.ordered,
                fp32=self.order.fp32,
            ),
            parts=self.parts,
            ring=self.ring,
            progress=self.progress,
            live=self.live,
            journal=self.journal,
        )
        self.resumption = Resumption(
            self.route,
            replay,
            arrival=arrival,
            files=self.files,
            registry=self.registry,
            interception=self.interception,
            warn=self.warn,
            go_live=self._go_live,
        )
        sickness = Sickness(
            self.registry,
            self.pipeline,
            self.health,
            self.samples,
            lambda: self.live.lead_optimizer,
        )
        self.session = Session(
            live=self.live,
            hooks=self.hooks,
            updates=self.updates,
            parting=self.parting,
            resumption=self.resumption,
            sickness=sickness,
            ending=Ending(
                parts=self.parts,
                progress=self.progress,
                health=self.health,
                ranks=self.ranks,
                checkpointer=self.checkpointer,
                tape=self.tape,
                script_files=self.files.record,
                journal=self.journal,
            ),
            grace_s=self.settings.watchdog.grace_s,
        )
        self.api = UserApi(
            session=self.session,
            progress=self.progress,
            journal=self.group_journal,
            barrier=self.barrier,
            dispatcher=self.dispatcher,
            pipeline=self.pipeline,
            handlers=self.alerts.handlers,
            reads=self.reads,
        )
        self._several_ranks()

    def _replay(self, route: Route) -> Replay:
        """Who answers until the script has come to the checkpoint."""
        start, meta = route.start, route.start.checkpoint.meta
        skips = meta.get("pure_loading", []) if self.loading.may_leave_out else []
        guard = None
        if skips and route.problem is None:
            guard = PlaceholderTracker(self.interception, lambda why: self.resumption.load_all(why))
        collectives = None
        if not self.place.is_alone:
            collectives = SilencedCollectives(
                self._meeting_place(), self.exchanges, route.beginning
            )
        return Replay(
            interception=self.interception,
            registry=self.registry,
            tape=route.tape,
            target=start.checkpoint.step,
            at_update=meta.get("at_update") is True,
            update_result=start.state.get("update_result"),
            skips=skips,
            data=RecordedData(start.state.get("held", {}), start.state.get("told_states")),
            guard=guard,
            collectives=collectives,
            count=route.count,
            disproof=route.problem,
            arrive=lambda done, why: self.resumption.arrive(done, why),
            before_training=self.parts.training_starts,
            before_first_update=self.census.keep_small_values,
            heartbeat=self._beat,
        )

    def _beat(self, steps_done: int) -> None:
        self.progress.replays(steps_done)
        self.heartbeat.replayed(steps_done)

    def _sides(self, replay: Replay | None) -> None:
        """Who answers each subject's own patches, in the live run and in the replay."""
        loaders = LoaderHooks(
            self.interception, self.progress, self.recording, self.heartbeat, self.barrier
        )
        reads = LiveReads(self.recording, self.interception, self.barrier)
        self.hooks = Sides[TrainingHooks](self.live, replay)
        self.loading_sides = Sides[LoadingHooks](loaders, replay.loading if replay else None)
        self.reads = Sides[ScriptReads](reads, replay.reads if replay else None)
        self.generators = Sides[LooksAtRandom](
            self.recording.random, replay.random if replay else None
        )
        self.gradient_hooks = Sides[GradientHooks](
            self.called_hooks, replay.gradient_hooks if replay else None
        )

    def _go_live(self) -> None:
        for side in (
            *(self.hooks, self.loading_sides, self.reads),
            *(self.generators, self.gradient_hooks),
        ):
            side.goes_live()

    def _meeting_place(self) -> MeetingPlace | None:
        """Where the ranks of a replay wait for each other; a mapped file is one node's alone."""
        place = self.place
        if place.is_alone or not self.is_one_node:
            return None
        path = self.rundir.board(self.attempt, place.node).with_suffix(".replay")
        try:
            return MeetingPlace(path, place.local_rank, place.local_world_size)
        except OSError:
            return None

    def _several_ranks(self) -> None:
        rundir, attempt, rank = self.rundir, self.attempt, self.rank
        records = CollectiveRecords(rundir.stacks(attempt, rank), rundir.records(attempt, rank))
        tells = [records.look] if self.waiting is None else [records.look, self.waiting.tell]
        self.several_ranks = SeveralRanks(
            place=self.place,
            collectives=CollectiveCount(rundir.collectives(rank), tells=tells),
            link=self.link if self.place.local_rank == 0 else None,
            judge_waiting=self.dispatcher.judge_waiting,
            only_watching=self.only_watching,
            progress=self.progress,
            barrier=self.barrier,
            warn=self.warn,
        )
