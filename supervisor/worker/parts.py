"""Everything that one worker process has of us, built once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from supervisor.actions.base import ActionContext
from supervisor.actions.catalogue import build_actions
from supervisor.actions.controls import Controls
from supervisor.config import load_resolved_config, load_resolved_policy
from supervisor.detectors.alert_handlers import load_alert_handlers
from supervisor.errors import CheckpointError
from supervisor.fault_injection.injector import FaultInjector
from supervisor.pipeline import Pipeline
from supervisor.records import Decision, WorkerOrder
from supervisor.storage.cases.case_advisor import CaseAdvisor
from supervisor.storage.cases.case_memory import load_memory
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.journal.journal import AlertLog, Journal
from supervisor.storage.run.orders import load_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.run.set_aside import SetAside
from supervisor.storage.steps.applied_rates import AppliedRates
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.more_values import MAX_NAMES
from supervisor.storage.steps.step_rows import OBSERVED_SLOTS
from supervisor.storage.steps.tape import TapeWriter
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.capture.pre_treatment_checkpoint import PreTreatmentCheckpoint
from supervisor.worker.capture.state_digests import StateDigests
from supervisor.worker.capture.user_tensors import UserTensors
from supervisor.worker.evidence.anomaly_scene import AnomalyScene
from supervisor.worker.evidence.model_scene import ModelScene
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.user_frames import user_frames
from supervisor.worker.interception.hook_state import hook_state
from supervisor.worker.live.boundary import Boundary
from supervisor.worker.live.monitor import Monitor
from supervisor.worker.live.script_use import ScriptUse
from supervisor.worker.live.unseen_updates import NO_STEP_YET
from supervisor.worker.probes.probes import Probes
from supervisor.worker.process.heartbeat import Heartbeat
from supervisor.worker.process.start_over import loads_all
from supervisor.worker.recording.file_sizes import FileSizes
from supervisor.worker.recording.loading_proof import LoadingProofs
from supervisor.worker.recording.recording import Recording
from supervisor.worker.recording.replayed_files import ReplayedFiles
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.starting_point import find_starting_point
from supervisor.worker.treatment.dispatcher import Dispatcher
from supervisor.worker.treatment.healing import Healing
from supervisor.worker.treatment.ordered_treatments import OrderedTreatments
from supervisor.worker.treatment.update_controls import UpdateControls

TOLD_TRAININGS = 20
"""A learner of each iteration of a meta-learner is another training, too: not all are told."""


class Parts:
    """The worker's parts and how they hang together; what they do is theirs.

    Built when torch has been imported by the script, before the script goes on.

    Args:
        rundir, attempt, rank: which worker this is.
        steps_done: of the run, or of its fast-forward while that is under way.

    Attributes:
        start: the checkpoint that this attempt begins at; None for nothing.
        use: what the script was seen to use.
        tape_is_whole: the tape tells how the script came here.
        notes_fetches: what data sets load is watched, so that a resume may leave it out.
        may_skip_loading: and this attempt may do so.
        trainings: how many this process has begun.
        batches_to_leave_out: that `supervisor.batches` has still to leave out.

    Raises (constructor):
        SupervisorError: an order, config or policy that cannot be read.
        OSError: the run directory cannot be written.
    """

    def __init__(
        self, rundir: RunDirectory, attempt: int, rank: int, steps_done: Callable[[], int]
    ) -> None:
        self.rundir = rundir
        self.attempt = attempt
        self.rank = rank
        self._steps_done = steps_done
        self.interception = InterceptionState()
        self.settings = load_resolved_config(rundir.config_yaml)
        self.policy = load_resolved_policy(rundir.policy_yaml)
        self.order: WorkerOrder = load_order(rundir, attempt)
        self.journal = Journal(
            rundir.rank_journal(rank), attempt=attempt, rank=rank, limits=self.settings.limits
        )
        self.registry = Registry()
        self.controls = Controls()
        self.state = TrainingState(self.registry)
        self.snapshots = SnapshotRing(self.settings.snapshot)
        self.held = UserTensors(self.registry)
        self.boundaries = BoundarySchedule()
        self.barrier = ErrorBarrier(self._part_failed, self._give_up)
        self.use = ScriptUse()
        self.tape_is_whole = True
        skip_loading = self.settings.fast_forward.skip_loading
        self.notes_fetches = skip_loading is not False
        self.proofs = LoadingProofs(self.interception, promised=bool(skip_loading))
        self.may_skip_loading = self.notes_fetches and not loads_all()
        self.batches_to_leave_out = 0
        self.trainings = 1
        self.samples = SampleGuard(
            rundir.root / "bad_samples.jsonl",
            attempt,
            lambda message: self.warn(message, aloud=True),
            self.interception,
            steps_done,
        )
        self._build_storage()
        self._build_judgement()
        self._build_steps()
        self.ordered = OrderedTreatments(
            self.order,
            controls=self.controls,
            registry=self.registry,
            dispatcher=self.dispatcher,
            barrier=self.barrier,
            make_context=self._action_context,
        )
        if self.settings.trail:
            self._leave_a_trail()
        self.monitor.probe.in_environment = self.settings.in_environment
        if self.order.experiment:
            self._begin_experiment()

    # --- building ----------------------------------------------------------------------------

    def _build_storage(self) -> None:
        self.ring = CheckpointRing(
            self.rundir.checkpoints, self.settings.checkpoint, on_rejected=self._rejected
        )
        self.start = find_starting_point(self.order, self.ring, self.journal)
        with contextlib.suppress(CheckpointError):  # they stay what they are: for a person alone
            self.ring.leave_course(-1 if self.start is None else self.start.checkpoint.step)
        self.tape = TapeWriter(
            self.rundir.tape(self.rank),
            keep=self.start.tape_offset if self.start is not None else 0,
            budget=int(self.settings.fast_forward.tape_budget_mib * (1 << 20)),
        )
        self.checkpointer = Checkpointer(
            self.ring, self.settings.checkpoint, self.journal, self.tape.sync
        )
        self.rates = AppliedRates(self.rundir.steps(self.rank))
        self.recorder = FlightRecorder(
            self.rundir.steps(self.rank),
            self.attempt,
            on_left_out=self._value_left_out,
            max_more_bytes=self.settings.observed_max_gib * (1 << 30),
            on_thinned=self._values_thinned,
        )
        self.file_sizes = FileSizes(
            self.tape,
            self.rundir.root / "appended.json",
            begins_again=self.attempt > 1 and self.start is None,
        )
        self.set_aside = SetAside(self.rundir, self.rank)
        self.script_files = ScriptFiles(
            self.rundir, self.rank, lambda: self._steps_done() > 0, self._files_unknown
        )
        self.replayed_files = ReplayedFiles(self.set_aside, self.script_files)
        self.life = Heartbeat(self.rundir.root / "alive" / f"rank_{self.rank}")

    def _build_judgement(self) -> None:
        advisor = CaseAdvisor(load_memory(self.rundir)) if self.policy.case_library else None
        self.pipeline = Pipeline(self.settings, self.policy, advisor=advisor)
        self.model_scene = ModelScene(
            self.rundir, self.rank, lambda: self.registry.models, self.warn
        )
        self.scene = AnomalyScene(
            self.rundir,
            self.rank,
            self.settings.capture,
            self.ring,
            self.model_scene,
            lambda: self.pipeline.detectors,
        )
        self.dispatcher = Dispatcher(
            pipeline=self.pipeline,
            journal=self.journal,
            alert_log=AlertLog(self.rundir.alerts),
            actions=build_actions(),
            make_context=self._action_context,
            on_anomaly=lambda record, alerts: self.scene.save(
                record, alerts, self.dispatcher.last_batch, self.journal
            ),
            note_risk=lambda rows, risk: self.recorder.mark_risk(rows, risk),
            before_first_update=lambda: self.boundary.before_first_update(),
            ask_for_boundary=self.boundaries.ask,
            warn=self.warn,
        )
        self.dispatcher.handlers += load_alert_handlers(self.settings.alert_handlers)
        self.healing = Healing(
            pipeline=self.pipeline,
            registry=self.registry,
            snapshots=self.snapshots,
            held=self.held,
            warn=self.warn,
        )

    def _build_steps(self) -> None:
        self.boundary = Boundary(
            settings=self.settings,
            boundaries=self.boundaries,
            state=self.state,
            held=self.held,
            snapshots=self.snapshots,
            checkpointer=self.checkpointer,
            dispatcher=self.dispatcher,
            tape_offset=self._tape_offset,
            pure_loading=self._pure_loading,
            begin_files=self.script_files.begin_interval,
            steps_recorded=lambda: self.recorder.rows,
            grads_matter=lambda: self.monitor.grads_matter,
            controls_state=self.controls.state_dict,
            hook_state=lambda: hook_state(self.registry.models.values()),
            loss_under_way=lambda: (
                self.monitor.probe.loss if self.monitor.probe.loss_seen else None
            ),
        )
        self.pre_treatment = PreTreatmentCheckpoint(
            whole_state=self.boundary.whole_state,
            checkpointer=self.checkpointer,
            step=lambda: self.monitor.steps_done,
            run=self.rundir.root,
            warn=self.warn,
        )
        self.updates = UpdateControls(
            self.controls,
            self._update_skipped,
            lambda norm: self.dispatcher.leaves_out_follower(self.monitor.steps_done, norm),
            lambda factor: self.rates.append(self.recorder.rows - 1, factor),
        )
        self.updates.skip_steps = frozenset(self.order.skip_steps)
        self.probes = Probes(
            self.settings.probes,
            registry=self.registry,
            interception=self.interception,
            journal=self.journal,
            warn=self.warn,
        )
        self.dispatcher.places_of = self.probes.places_of
        self.monitor = Monitor(
            interception=self.interception,
            registry=self.registry,
            recorder=self.recorder,
            recording=Recording(self.tape),
            dispatcher=self.dispatcher,
            updates=self.updates,
            injector=FaultInjector(self.settings.faults, self.rundir.root / "faults.json"),
            barrier=self.barrier,
            probes=self.probes,
            boundaries=self.boundaries,
            at_boundary=self.boundary,
            at_new_training=self._begin_another_training,
            at_many_backwards=lambda: self.warn(NO_STEP_YET, aloud=True),
            heartbeat=self.life.beat,
        )

    def _leave_a_trail(self) -> None:
        trail = StateDigests(
            self.rundir,
            self.rank,
            self.attempt,
            registry=self.registry,
            capture=self.state.capture,
            held=lambda: self.held.find(user_frames()),
            facts=lambda: {
                "uses_autocast": self.use.autocast,
                "uses_batches": self.use.batches,
                "clips_at": self.updates.clips_at,
            },
        )
        self.boundary.trail = trail
        self.monitor.probe = trail.probe

    def _begin_experiment(self) -> None:
        from supervisor.worker.inspection.experiment import (
            Experiment,  # no run but a replay needs it
        )
        from supervisor.worker.inspection.inspection import Inspection
        from supervisor.worker.interception.patches_writes import keep_writes_apart

        root = self.rundir.root
        keep_writes_apart(root)
        self.boundary.experiment = Experiment(
            self.order.experiment,
            registry=self.registry,
            controls=self.controls,
            use_fp32=self.ordered.fp32,
            inspection=Inspection(
                root / "inspections", self.registry, lambda: self.dispatcher.last_batch
            ),
        )

    # --- what the parts ask of each other -----------------------------------------------------

    def _action_context(self, decision: Decision) -> ActionContext:
        return ActionContext(
            step=decision.step,
            policy=self.policy,
            decision=decision,
            controls=self.controls,
            registry=self.registry,
            state=self.state,
            snapshots=self.snapshots,
            recent_grad_norms=self.dispatcher.recent_grad_norms,
            keep_state=self.pre_treatment.keep,
            thrown_away=self.pre_treatment.thrown_away,
            put_back_held=self.healing.put_back_held,
            save_checkpoint=self._want_checkpoint,
            request_restart=lambda reason: self.leave("restart", reason),
            request_stop=lambda reason: self.leave("stop", reason),
            pipeline_restore=self.healing.after_rollback,
            skip_batches=self._leave_out_batches if self.use.batches else None,
            script_clips=self.updates.script_clips,
            uses_batch_size=self.use.batch_size,
            uses_autocast=self.use.autocast,
        )

    def leave(self, note: str, reason: str) -> None:
        """The process is to end at the next boundary; see `Boundary.leave`."""
        self.boundary.leave = (note, reason)
        self.boundaries.ask()

    def warn(self, message: str, *, aloud: bool = False) -> None:
        """Writes a warning to the journal; the parent tells it at the terminal too if `aloud`."""
        more = {"aloud": True} if aloud else {}
        self.journal.write("warning", step=self.monitor.steps_done, message=message, **more)

    def _files_unknown(self, why: str) -> None:
        self.warn(f"what the script does with its files is not all recorded ({why})", aloud=True)

    def _update_skipped(self, step: int, why: str) -> None:
        self.journal.write("update_skipped", step=step, reason=why)
        self.samples.explain(self.dispatcher.last_batch)
        self.healing.after_skip()

    def _want_checkpoint(self, reason: str) -> bool:
        self.dispatcher.wants_checkpoint = reason
        self.boundaries.ask()
        return True

    def _leave_out_batches(self, count: int) -> None:
        self.batches_to_leave_out += count

    def _begin_another_training(self, step: int, has_other_weights: bool) -> None:
        """Another optimizer leads from here on; with other weights, what is known of the last
        training is of no use. Snapshots hold the state of the optimizer that was."""
        self.snapshots.clear()
        if not has_other_weights:
            return
        self.dispatcher.begin_another_training()
        self.controls.lr_share = 1.0
        self.trainings += 1
        if self.trainings <= TOLD_TRAININGS:
            self.journal.write("state_found", step=step, found="another training")

    def _pure_loading(self) -> list[int]:
        """Numbers of the data sets whose loading a resume from here on may leave out."""
        return self.proofs.held() if self.may_skip_loading else []

    def _tape_offset(self) -> int:
        """Length of the tape; -1 when it does not tell how the script came here."""
        offset = self.tape.write_out()
        whole = self.tape_is_whole and not self.monitor.trains_within_forward
        return offset if whole and not self.tape.is_full else -1

    def _rejected(self, checkpoint: Checkpoint, reason: str) -> None:
        self.journal.write("checkpoint_rejected", step=checkpoint.step, reason=reason)

    def _value_left_out(self, name: str) -> None:
        self.warn(
            f"observed value '{name}': there are {MAX_NAMES} other names already: it and further "
            "new ones are judged by detectors, but not recorded: give values fewer names"
        )

    def _values_thinned(self, apart: int) -> None:
        self.warn(
            f"observed values are near their disk budget: those beyond the first {OBSERVED_SLOTS} "
            f"names are kept of every {apart}th step only: raise observed_max_gib, or observe less",
            aloud=True,
        )

    def _part_failed(self, part: str, short: str, trace: str) -> None:
        self.journal.write("warning", message=f"supervisor: {part} failed: {short}", trace=trace)

    def _give_up(self, part: str) -> None:
        self.interception.turn_off()
        self.journal.write("warning", message=f"supervision is off: {part} failed repeatedly")
