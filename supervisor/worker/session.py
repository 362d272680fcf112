"""Everything that one worker process has of us, built once and taken down at the end."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Mapping
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from supervisor.actions.activation_checkpointing import ActivationCheckpointing
from supervisor.actions.base import ActionContext
from supervisor.actions.catalogue import build_actions
from supervisor.actions.controls import Controls
from supervisor.config import load_resolved_config, load_resolved_policy
from supervisor.detectors.alert_handlers import load_alert_handlers
from supervisor.fault_injection.injector import FaultInjector
from supervisor.pipeline import Pipeline
from supervisor.records import Decision, WorkerOrder
from supervisor.storage.case_advisor import CaseAdvisor
from supervisor.storage.case_memory import load_memory
from supervisor.storage.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.flight_recorder import FlightRecorder
from supervisor.storage.journal import AlertLog, Journal
from supervisor.storage.more_values import MAX_NAMES
from supervisor.storage.orders import load_order
from supervisor.storage.rundir import RunDirectory
from supervisor.storage.tape import EntryKind, TapeWriter
from supervisor.training_state.model_state import heal_buffers
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.anomaly_scene import AnomalyScene
from supervisor.worker.boundary import Boundary
from supervisor.worker.checkpointer import Checkpointer
from supervisor.worker.clinic import Clinic
from supervisor.worker.file_sizes import FileSizes
from supervisor.worker.held import HeldValues
from supervisor.worker.leaving import WorkerLeaves
from supervisor.worker.life import SignOfLife
from supervisor.worker.loading_proof import LoadingProofs
from supervisor.worker.model_scene import ModelScene
from supervisor.worker.moments import Moments
from supervisor.worker.monitor import Monitor
from supervisor.worker.observed import observed_numbers
from supervisor.worker.ordered_treatments import OrderedTreatments
from supervisor.worker.probes.probes import Probes
from supervisor.worker.recording import Recording
from supervisor.worker.resumption import Resumption
from supervisor.worker.sample_guard import SampleGuard
from supervisor.worker.shield import Shield
from supervisor.worker.start_over import loads_all
from supervisor.worker.switch import Switch
from supervisor.worker.trail import Trail
from supervisor.worker.unseen_updates import ANOTHER_TRAINING, tell_unseen_updates
from supervisor.worker.update_controls import UpdateControls
from supervisor.worker.user_frames import user_frames


class Session:
    """Builds the worker's parts and holds them; `moments` is whoever answers now.

    Built when torch has been imported by the script, before the script goes on.
    """

    def __init__(self, rundir: RunDirectory, attempt: int, rank: int) -> None:
        self.rundir = rundir
        self.attempt = attempt
        self.rank = rank
        self.switch = Switch()
        self.settings = load_resolved_config(rundir.config_yaml)
        self.policy = load_resolved_policy(rundir.policy_yaml)
        self.order: WorkerOrder = load_order(rundir, attempt)
        self.journal = Journal(rundir.rank_journal(rank), attempt=attempt, rank=rank)
        self.registry = Registry()
        self.controls = Controls()
        self.state = TrainingState(self.registry)
        self.snapshots = SnapshotRing(self.settings.snapshot)
        self.ring = CheckpointRing(
            rundir.checkpoints, self.settings.checkpoint, on_rejected=self._rejected
        )
        self.held = HeldValues(self.registry)
        self.shield = Shield(self._part_failed, self._give_up)
        self._parametrised: dict[int, tuple[weakref.ref[Module], bool]] = {}
        self.tape_is_whole = True
        skip_loading = self.settings.fast_forward.skip_loading
        self.notes_fetches = skip_loading is not False
        self.proofs = LoadingProofs(self.switch, promised=bool(skip_loading))
        self.may_skip_loading = self.notes_fetches and not loads_all()
        self._left_out_batches = 0
        self._uses_batches = False
        self.asks_batch_size = False
        self.announced_in_replay = -1
        self._uses_autocast = False
        self.samples = SampleGuard(
            rundir.root / "bad_samples.jsonl",
            attempt,
            lambda message: self.warn(message, aloud=True),
            self.switch,
            lambda: self.moments.steps_done,
        )
        self.ordered = OrderedTreatments(self)
        self.resumption = Resumption(self)
        self._build()
        self.moments: Moments = self.monitor
        self.file_sizes = FileSizes(
            self.tape,
            self.rundir.root / "appended.json",
            begins_again=self.attempt > 1 and not self.resumption.is_pending,
        )
        if self.resumption.is_pending:
            self.moments = self.resumption.begin()
        else:
            self.resumption.be_careful()
            self.ordered.at_start()

    # --- building ----------------------------------------------------------------------------

    def _build(self) -> None:
        advisor = None
        if self.policy.case_library:
            advisor = CaseAdvisor(load_memory(self.rundir))
        self.pipeline = Pipeline(self.settings, self.policy, advisor=advisor)
        self.tape = TapeWriter(
            self.rundir.tape(self.rank),
            keep=self.resumption.tape_offset,
            budget=int(self.settings.fast_forward.tape_budget_mib * (1 << 20)),
        )
        self.checkpointer = Checkpointer(
            self.ring, self.settings.checkpoint, self.journal, self.tape.sync
        )
        self.model_scene = ModelScene(
            self.rundir, self.rank, lambda: self.registry.models, self.warn
        )
        self.scene = AnomalyScene(
            self.rundir, self.rank, self.settings.capture, self.ring, self.model_scene
        )
        self.clinic = Clinic(
            pipeline=self.pipeline,
            journal=self.journal,
            alert_log=AlertLog(self.rundir.alerts),
            actions=build_actions(),
            make_context=self.action_context,
            on_anomaly=lambda record, alerts: self.scene.save(
                record, alerts, self.clinic.last_batch, self.journal
            ),
            note_risk=lambda row, risk: self.recorder.mark(row, risk=risk),
            before_first_update=lambda: self.boundary.before_first_update(),
            warn=self.warn,
        )
        self.boundary = Boundary(
            settings=self.settings,
            state=self.state,
            held=self.held,
            snapshots=self.snapshots,
            checkpointer=self.checkpointer,
            clinic=self.clinic,
            tape_offset=self._tape_offset,
            pure_loading=self._pure_loading,
            steps_recorded=lambda: self.recorder.rows,
            grads_matter=lambda: self.monitor.grads_matter,
            controls_state=self.controls.state_dict,
        )
        self.updates = UpdateControls(self.controls, self._update_skipped)
        self.updates.skip_steps = frozenset(self.order.skip_steps)
        self.recorder = FlightRecorder(
            self.rundir.steps(self.rank), self.attempt, on_left_out=self._value_left_out
        )
        self.life = SignOfLife(self.rundir.root / "alive" / f"rank_{self.rank}")
        self.probes = Probes(
            self.settings.probes,
            registry=self.registry,
            switch=self.switch,
            journal=self.journal,
            warn=self.warn,
        )
        self.clinic.handlers += load_alert_handlers(self.settings.alert_handlers)
        self.clinic.places_of = self.probes.places_of
        self.monitor = Monitor(
            switch=self.switch,
            registry=self.registry,
            recorder=self.recorder,
            recording=Recording(self.tape),
            clinic=self.clinic,
            updates=self.updates,
            injector=FaultInjector(self.settings.faults, self.rundir.root / "faults.json"),
            shield=self.shield,
            probes=self.probes,
            at_boundary=self.boundary,
            at_new_training=self._begin_another_training,
            sign_of_life=self.life.beat,
        )
        if self.settings.trail:
            self._leave_a_trail()
        if self.order.experiment:
            from supervisor.worker.experiment import experiment_in  # no run but a replay needs it

            self.boundary.experiment = experiment_in(self)

    def _leave_a_trail(self) -> None:
        trail = Trail(
            self.rundir,
            self.rank,
            self.attempt,
            registry=self.registry,
            capture=self.state.capture,
            held=lambda: self.held.find(user_frames()),
            facts=lambda: {
                "uses_autocast": self._uses_autocast,
                "uses_batches": self._uses_batches,
                "clips_at": self.updates.clips_at,
            },
        )
        self.boundary.trail = trail
        self.monitor.probe = trail.probe

    def action_context(self, decision: Decision) -> ActionContext:
        """What an action may use now; fresh for each decision."""
        return ActionContext(
            step=decision.step,
            policy=self.policy,
            decision=decision,
            controls=self.controls,
            registry=self.registry,
            state=self.state,
            snapshots=self.snapshots,
            recent_grad_norms=self.clinic.recent_grad_norms,
            save_checkpoint=self._want_checkpoint,
            request_restart=lambda reason: self._leave("restart", reason),
            request_stop=lambda reason: self._leave("stop", reason),
            pipeline_restore=self._rolled_back,
            skip_batches=self._skip_batches if self._uses_batches else None,
            script_clips=self.updates.script_clips,
            uses_batch_size=self.asks_batch_size,
            uses_autocast=self._uses_autocast,
        )

    def _begin_another_training(self, step: int) -> None:
        """Another optimizer leads from here on: what is known of the last training is of no use."""
        self.clinic.begin_another_training()
        self.snapshots.clear()
        self.controls.lr_share = 1.0
        self.journal.write("state_found", step=step, found="another training")

    def _rolled_back(self, extras: Mapping[str, Any]) -> None:
        """The rest of a rollback: our own windows, and what the user's variables hold."""
        self.pipeline.rolled_back(int(extras["pipeline_step"]))
        snapshot = self.snapshots.newest()
        if snapshot is not None:
            self.held.put_back_lasting(snapshot.state.get("held", {}))
        healed = self.held.heal(user_frames())
        if healed:
            self.warn(f"variables that were not finite were zeroed: {', '.join(healed)}")

    def _skip_batches(self, count: int) -> None:
        self._left_out_batches += count

    def _update_skipped(self, step: int, why: str) -> None:
        self.journal.write("update_skipped", step=step, reason=why)
        self.samples.explain(self.clinic.last_batch)
        snapshot = self.snapshots.newest()
        if snapshot is None:
            return
        for name, model in self.registry.models.items():
            healed = heal_buffers(model, snapshot.state["models"].get(name, {}))
            if healed:
                self.warn(
                    f"buffers that were not finite are those of step {snapshot.step} again: "
                    f"{', '.join(healed[:8])}"
                )

    def _pure_loading(self) -> list[int]:
        """Numbers of the data sets whose loading a resume from here on may leave out."""
        return self.proofs.held() if self.may_skip_loading else []

    def _tape_offset(self) -> int:
        """Length of the tape; -1 when it does not tell how the script came here."""
        offset = self.tape.write_out()
        return offset if self.tape_is_whole and not self.tape.is_full else -1

    def _want_checkpoint(self, reason: str) -> bool:
        self.clinic.wants_checkpoint = reason
        return True

    def _leave(self, note: str, reason: str) -> None:
        self.boundary.leave = (note, reason)

    def _rejected(self, checkpoint: Checkpoint, reason: str) -> None:
        self.journal.write("checkpoint_rejected", step=checkpoint.step, reason=reason)

    # --- what the patched functions ask ------------------------------------------------------

    def object_found(self, kind: str, found: Any) -> None:
        with self.shield("registry"):
            getattr(self.registry, f"add_{kind}")(found)

    def has_parameters(self, module: Module) -> bool:
        known = self._parametrised.get(id(module))
        if known is None or known[0]() is not module:  # the id may be that of one long gone
            has = next(Module.named_parameters(module), None) is not None
            known = self._parametrised[id(module)] = (weakref.ref(module), has)
        return known[1]

    def fp32_forced(self) -> bool:
        self._uses_autocast = True
        return self.controls.fp32

    def update_failed(self, optimizer: Optimizer, depth: int) -> None:
        """Ends what is open of an update that raised; the script may go on behind it.

        A replay makes no updates, so none of its fails: from here on no resume is exact.

        Args:
            optimizer: whose step raised.
            depth: of the switch, before that step.
        """
        self.switch.depth = depth
        self.tape_is_whole = False
        self.moments.update_failed(optimizer)

    # --- the user's API ----------------------------------------------------------------------

    def observe(self, values: dict[str, Any]) -> None:
        """See `supervisor.worker.run.observe`."""
        if self.switch.replaying:
            return
        with self.shield("observe"):
            self.switch.depth += 1
            try:
                self.monitor.probe.observed.update(observed_numbers(values))
            finally:
                self.switch.depth -= 1

    def announce(self, change: str) -> None:
        """See `supervisor.worker.run.announce`.

        In a replay only the announcement of the step that is trained next counts: the others are in
        the windows that come with the checkpoint.
        """
        with self.shield("announce"):
            if self.switch.replaying:
                self.announced_in_replay = self.resumption.steps_replayed
                return
            self.monitor.probe.announced = True
            self.journal.write(
                "state_found",
                step=self.monitor.steps_done,
                found="announced change",
                detail=str(change),
            )

    def add_detector(self, detector: Any) -> None:
        self.clinic.judge_waiting()
        self.pipeline.detectors.append(detector)

    def leave_out_batch(self) -> bool:
        """Whether `supervisor.batches` is to leave out the next batch (action ``skip_data``)."""
        self._uses_batches = True
        if self._left_out_batches == 0:
            return False
        self._left_out_batches -= 1
        return True

    def allowed_batch_size(self, wanted: int) -> int:
        """The answer is on the tape, so that a replay splits its batches as they were split."""
        self.asks_batch_size = True
        return int(
            self.moments.read(
                EntryKind.INT, lambda: max(1, int(wanted * self.controls.batch_factor))
            )
        )

    @property
    def offers_checkpointing(self) -> bool:
        """Whether a model could compute its activations again instead of keeping them."""
        models = self.registry.models.values()
        return any(ActivationCheckpointing(model).is_offered for model in models)

    @property
    def shortfall(self) -> str:
        """Why a script that came to its end has not trained; empty if it has."""
        return self.resumption.shortfall

    # --- telling -----------------------------------------------------------------------------

    def warn(self, message: str, *, aloud: bool = False) -> None:
        """Writes a warning to the journal; the parent tells it at the terminal too if `aloud`."""
        more = {"aloud": True} if aloud else {}
        self.journal.write("warning", step=self.monitor.steps_done, message=message, **more)

    def _value_left_out(self, name: str) -> None:
        self.warn(
            f"observed value '{name}': there are {MAX_NAMES} other names already: it and further "
            "new ones are judged by detectors, but not recorded: give values fewer names"
        )

    def _part_failed(self, part: str, short: str, trace: str) -> None:
        self.journal.write("warning", message=f"supervisor: {part} failed: {short}", trace=trace)

    def _give_up(self, part: str) -> None:
        self.switch.turn_off()
        self.journal.write("warning", message=f"supervision is off: {part} failed repeatedly")

    # --- the end -----------------------------------------------------------------------------

    def begin(self) -> None:
        """The script may go on: from here on its training is seen."""
        if self.resumption.guard is not None:
            self.resumption.guard.begin()
        self.switch.active = True
        os.register_at_fork(after_in_child=self.switch.turn_off)
        signal.signal(signal.SIGTERM, self._asked_to_end)

    def _asked_to_end(self, signum: int, frame: Any) -> None:
        """SIGTERM: leaves at the next boundary, saved; or now if there is nothing to save.

        A second one leaves now in any case.
        """
        monitor = self.monitor
        unseen = monitor.steps_done == 0 or monitor.updates_by_others >= ANOTHER_TRAINING
        now = unseen or self.resumption.is_pending
        if now or self.boundary.leave is not None:
            raise WorkerLeaves("interrupted", "SIGTERM")
        self._leave("interrupted", "SIGTERM")

    def end(self, *, completed: bool) -> None:
        """Takes everything down; waits for what is being written. Called once."""
        self.switch.turn_off()
        self.resumption.silence.end()
        monitor = self.monitor
        try:
            unseen = tell_unseen_updates(
                steps=monitor.steps_done,
                backward_calls=monitor.probe.backward_calls,
                updates_by_others=monitor.updates_by_others,
            )
            if unseen is not None:
                self.journal.write("warning", message=unseen, aloud=True)
            if self.boundary.experiment is not None:
                self.boundary.experiment.end()
            self.clinic.judge_waiting()
            self.samples.tell()
            self.probes.end()
            self.model_scene.at_end(monitor.steps_done - 1)
            if completed and not self.clinic.in_trouble(monitor.steps_done):
                self.checkpointer.close(ripen=(monitor.steps_done, self.clinic.last_trouble_step))
            else:
                self.checkpointer.close()
            self.tape.close()
        except Exception as error:  # the script's own result stands
            self.journal.write("warning", message=f"at the end: {error}")
        self.journal.close()
