"""What the script, the patched functions of torch and the process itself ask of the worker."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from supervisor.actions.activation_checkpointing import ActivationCheckpointing
from supervisor.records import Alert
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.tape import EntryKind
from supervisor.worker.ground.observed import observed_numbers
from supervisor.worker.interception.training_hooks import TrainingHooks
from supervisor.worker.live.unseen_updates import ANOTHER_TRAINING, tell_unseen_updates
from supervisor.worker.parts import Parts
from supervisor.worker.process.exit_request import ExitRequest
from supervisor.worker.resumption import Resumption


class Session:
    """One worker process under supervision, from the import of torch to its end.

    Attributes:
        parts: what it is made of.
        hooks: whoever answers now: the replay, or the monitor.
        interception: of `parts`; looked at on every call of a patched function.
        last_model: called, returns the module of which `has_parameters` was last found true.
    """

    def __init__(self, rundir: RunDirectory, attempt: int, rank: int) -> None:
        self.parts = Parts(rundir, attempt, rank, lambda: self.hooks.steps_done)
        self.interception = self.parts.interception
        self.last_model: Callable[[], Module | None] = lambda: None
        self._parametrised: dict[int, tuple[weakref.ref[Module], bool]] = {}
        self._resumption = Resumption(self.parts, self._training_goes_on)
        self.hooks: TrainingHooks = self.parts.monitor
        if self._resumption.is_pending:
            self.hooks = self._resumption.begin()
        else:
            self.parts.ordered.from_nothing()
            self.parts.script_files.begin_anew()

    def _training_goes_on(self) -> None:
        """A fast-forward has arrived."""
        self.hooks = self.parts.monitor

    # --- what the patched functions ask ------------------------------------------------------

    def object_found(self, kind: str, found: Any) -> None:
        with self.parts.barrier("registry"):
            getattr(self.parts.registry, f"add_{kind}")(found)

    def has_parameters(self, module: Module) -> bool:
        known = self._parametrised.get(id(module))
        if known is None or known[0]() is not module:  # the id may be that of one long gone
            has = next(Module.named_parameters(module), None) is not None
            known = self._parametrised[id(module)] = (weakref.ref(module), has)
        if known[1]:
            self.last_model = known[0]
        return known[1]

    def fp32_forced(self) -> bool:
        self.parts.use.autocast = True
        return self.parts.controls.fp32

    def update_failed(self, optimizer: Optimizer, depth: int) -> None:
        """Ends what is open of an update that raised; the script may go on behind it.

        A replay makes no updates, so none of its fails: from here on no resume is exact.

        Args:
            optimizer: whose step raised.
            depth: of the switch, before that step.
        """
        self.interception.depth = depth
        self.parts.tape_is_whole = False
        self.hooks.update_failed(optimizer)

    # --- the user's API ----------------------------------------------------------------------

    def observe(self, values: dict[str, Any]) -> None:
        """See `supervisor.worker.run.observe`."""
        if self.interception.replaying:
            return
        with self.parts.barrier("observe"), self.interception.region():
            self.parts.monitor.probe.observed.update(observed_numbers(values))

    def announce(self, change: str) -> None:
        """See `supervisor.worker.run.announce`.

        In a replay only the announcement of the step that is trained next counts: the others are in
        the windows that come with the checkpoint.
        """
        with self.parts.barrier("announce"):
            if self.interception.replaying:
                self._resumption.announced()
                return
            self.parts.monitor.probe.announced = True
            self.parts.journal.write(
                "state_found",
                step=self.parts.monitor.steps_done,
                found="announced change",
                detail=str(change),
            )

    def track(self, name: str, value: Any) -> None:
        """See `supervisor.worker.run.track`."""
        self.parts.registry.track(name, value)

    def add_alert_handler(self, handler: Callable[[Alert], None]) -> None:
        self.parts.dispatcher.handlers.append(handler)

    def add_detector(self, detector: Any) -> None:
        self.parts.dispatcher.judge_waiting()
        self.parts.pipeline.detectors.append(detector)

    def leave_out_batch(self) -> bool:
        """Whether `supervisor.batches` is to leave out the next batch (action ``skip_data``)."""
        self.parts.use.batches = True
        if self.parts.batches_to_leave_out == 0:
            return False
        self.parts.batches_to_leave_out -= 1
        return True

    def allowed_batch_size(self, wanted: int) -> int:
        """The answer is on the tape, so that a replay splits its batches as they were split."""
        self.parts.use.batch_size = True
        controls = self.parts.controls
        return int(
            self.hooks.read(EntryKind.INT, lambda: max(1, int(wanted * controls.batch_factor)))
        )

    @property
    def offers_checkpointing(self) -> bool:
        """Whether a model could compute its activations again instead of keeping them."""
        models = self.parts.registry.models.values()
        return any(ActivationCheckpointing(model).is_offered for model in models)

    # --- the process -------------------------------------------------------------------------

    @property
    def has_arrived(self) -> bool:
        """Whether the state of the checkpoint was put back, if this attempt has one."""
        return self._resumption.has_arrived

    @property
    def shortfall(self) -> str:
        """Why a script that came to its end has not trained; empty if it has."""
        return self._resumption.shortfall

    @property
    def steps_done(self) -> int:
        """Steps that this training has made, those before a resume included."""
        return self.parts.monitor.steps_done

    def warn(self, message: str) -> None:
        self.parts.warn(message)

    def begin(self) -> None:
        """The script may go on: from here on its training is seen."""
        self._resumption.hide_files()
        if self._resumption.guard is not None:
            self._resumption.guard.begin()
        self.interception.active = True
        os.register_at_fork(after_in_child=self.interception.turn_off)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the script has its own
            signal.signal(signal.SIGTERM, self._asked_to_end)

    def _asked_to_end(self, signum: int, frame: Any) -> None:
        """SIGTERM: leaves at the next boundary, saved; or now if there is nothing to save.

        A second one leaves now in any case.
        """
        monitor = self.parts.monitor
        unseen = monitor.steps_done == 0 or monitor.updates_by_others >= ANOTHER_TRAINING
        now = unseen or self._resumption.is_pending
        if now or self.parts.boundary.leave is not None:
            raise ExitRequest("interrupted", "SIGTERM")
        self.parts.leave("interrupted", "SIGTERM")

    def end(self, *, completed: bool) -> None:
        """Takes everything down; waits for what is being written. Called once."""
        self.interception.turn_off()
        self._resumption.silence.end()
        parts, monitor = self.parts, self.parts.monitor
        try:
            unseen = tell_unseen_updates(
                steps=monitor.steps_done,
                backward_calls=monitor.probe.backward_calls,
                updates_by_others=monitor.updates_by_others,
            )
            if unseen is not None:
                parts.journal.write("warning", message=unseen, aloud=True)
            if parts.boundary.experiment is not None:
                parts.boundary.experiment.end()
            parts.dispatcher.judge_waiting()
            parts.samples.tell()
            parts.probes.end()
            parts.model_scene.at_end(monitor.steps_done - 1)
            if completed and not parts.dispatcher.in_trouble(monitor.steps_done):
                parts.checkpointer.close(
                    ripen=(monitor.steps_done, parts.dispatcher.last_trouble_step)
                )
            else:
                parts.checkpointer.close()
            parts.tape.close()
            if completed:
                parts.script_files.end()
        except Exception as error:  # the script's own result stands
            parts.journal.write("warning", message=f"at the end: {error}")
        parts.journal.close()
