"""One worker process under supervision, from the import of torch to its end."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch.nn import Module
from torch.optim import Optimizer

from supervisor.actions.checkpoint_activations import ActivationCheckpointing
from supervisor.by_identity import ByIdentity
from supervisor.errors import ReplayError
from supervisor.worker.checkpoints.exit_checkpoint import ExitCheckpoint
from supervisor.worker.core.part import Sides
from supervisor.worker.core.process_signs import SHORT, ExitRequest
from supervisor.worker.core.progress import refuse_fsdp1
from supervisor.worker.core.training_hooks import TrainingHooks
from supervisor.worker.ending import Ending, Sickness
from supervisor.worker.live import Live
from supervisor.worker.mistakes.watch import MistakeWatch
from supervisor.worker.process.patches_signals import script_signals
from supervisor.worker.resumption import Resumption
from supervisor.worker.step_record.step_recorder import ANOTHER_TRAINING
from supervisor.worker.treatment.update_controls import UpdateControls

BOUNDARY_WITHIN_S = 5.0
"""Half of what the parent gives a hung worker after SIGTERM; the rest is for the writing."""


class Session:
    """What the patched functions of torch and the process itself ask of the worker.

    Attributes:
        call_state: looked at on every call of a patched function.
        last_model: called, returns the module of which `has_parameters` was last found true.
        use: what the script was seen to use.
        warn: writes a warning to the journal.
        grace_s: an end so long after a signal that asked for it is no end of the script's own.
    """

    def __init__(
        self,
        *,
        live: Live,
        hooks: Sides[TrainingHooks],
        updates: UpdateControls,
        exit_checkpoint: ExitCheckpoint,
        resumption: Resumption,
        sickness: Sickness,
        ending: Ending,
        grace_s: float,
    ) -> None:
        self.call_state = live.call_state
        self.has_late_steps = live.has_late_steps
        self.registry = live.registry
        self.controls, self.use = updates.controls, updates.use
        self.resumption = resumption
        self.warn = resumption.warn
        self.grace_s = grace_s
        self.last_model: Callable[[], Module | None] = lambda: None
        self._live = live
        self._progress = live.progress
        self._schedule = live.schedule
        self._exit_checkpoint = exit_checkpoint
        self._sickness = sickness
        self._ending = ending
        self._has_ended = False
        self._was_asked = False
        self._registering = ending.parts.breakers("registry")
        self._parametrised: ByIdentity[Module, tuple[bool, Callable[[], Module | None]]]
        self._parametrised = ByIdentity()
        self.hooks = hooks
        resumption.start()

    @property
    def mistakes(self) -> MistakeWatch:
        return self._live.mistakes

    # --- what the patched functions ask ------------------------------------------------------

    def object_found(self, kind: str, found: Any) -> None:
        """The script has made an object of torch that belongs to its state."""
        self._live.mistakes.made(kind, found)
        with self._registering:
            getattr(self.registry, f"add_{kind}")(found)

    def batch_found(self, iterator: Any, batch: Any) -> None:
        """A data loader's iterator hands out a batch, live or in a replay."""
        mistakes = self.mistakes
        if (mistakes.is_on or mistakes.follows_loaders) and not self.call_state.replaying:
            with self.call_state.region():
                mistakes.batch(iterator, batch)

    def has_parameters(self, module: Module) -> bool:
        """Whether a call of `module` is a region of the training."""
        known: tuple[bool, Callable[[], Module | None]] | None = self._parametrised.get(module)
        if known is None:
            if self.resumption.is_of_ranks:
                refuse_fsdp1(module)
            has = next(Module.named_parameters(module), None) is not None
            known = self._parametrised[module] = has, weakref.ref(module)
        if known[0]:
            self.last_model = known[1]
        return known[0]

    def enters_autocast(self) -> bool:
        """Whether the autocast region that the script enters is to stay in FP32."""
        self.use.autocast = True
        if self.call_state.is_ours():
            self._progress.autocast.enters(self._progress.position)
        return self.controls.fp32

    def update_failed(self, optimizer: Optimizer, depth: int) -> None:
        """Ends what is open of an update that raised; the script may go on behind it.

        A replay makes no updates, so none of its fails: from here on no resume is exact.

        Args:
            optimizer: whose step raised.
            depth: of the call state, before that step.
        """
        self.call_state.depth = depth
        self._progress.can_replay = False
        self.hooks.now.update_failed(optimizer)

    # --- the process -------------------------------------------------------------------------

    @property
    def has_arrived(self) -> bool:
        """Whether the state of the checkpoint was put back, if this attempt has one."""
        return self.resumption.has_arrived

    @property
    def shortfall(self) -> str:
        """Why a script that came to its end has not trained; empty if it has."""
        return self.resumption.shortfall

    @property
    def steps_done(self) -> int:
        """Steps that this training has made, those before a resume included."""
        return self._progress.steps_done

    @property
    def samples_at_fault(self) -> tuple[str, ...]:
        """The samples on which loading failed."""
        return self._sickness.samples_at_fault

    @property
    def offers_checkpointing(self) -> bool:
        """Whether a model could compute its activations again instead of keeping them."""
        models = self.registry.models.values()
        return any(ActivationCheckpointing(model).is_offered for model in models)

    def start(self) -> None:
        """The script may go on: from here on its training is seen.

        Raises:
            ExitRequest: a replay cannot begin, as where the script's files could not be hidden.
        """
        try:
            self.resumption.begin_script()
        except (OSError, ReplayError) as error:
            self.resumption.stop()
            raise ExitRequest(SHORT, f"the fast-forward could not begin: {error}") from error
        self.call_state.active = True
        os.register_at_fork(after_in_child=self.call_state.turn_off)
        script_signals.act(signal.SIGTERM, self._asked_to_end)

    def _asked_to_end(self, signum: int, frame: Any) -> None:
        """SIGTERM: leaves at the next boundary, saved; or now if there is nothing to save.

        If no boundary comes in time, it leaves with what was kept at the last one. A second signal
        leaves now in any case.
        """
        if self._has_ended:
            return  # what it asks for is under way
        by_others = self._live.updates_by_others
        unseen = self._progress.steps_done == 0 or by_others >= ANOTHER_TRAINING
        if unseen or self.resumption.is_pending or self._leaves_already():
            raise ExitRequest("interrupted", "SIGTERM")
        self._was_asked = True
        self._schedule.ask_to_leave("interrupted", "SIGTERM")
        # Not by `threading`: the signal may have come while this thread holds one of its locks.
        _thread.start_new_thread(self._await_boundary, (threading.get_ident(),))

    def _leaves_already(self) -> bool:
        """Not so if another rank was asked first and all have agreed: this signal is this rank's
        first, and to leave at once would cost all ranks the state that they are about to save."""
        leave = self._schedule.leave
        by_others = leave is not None and leave[0] == "interrupted" and not self._was_asked
        return self._schedule.is_leaving and not by_others

    def _await_boundary(self, main_thread: int) -> None:
        time.sleep(BOUNDARY_WITHIN_S)
        waits = self._schedule.is_leaving and not self._has_ended
        if waits and self._exit_checkpoint.is_ready:
            signal.pthread_kill(main_thread, signal.SIGTERM)

    def sickness(self) -> str:
        """Why what the script ends with is no good; empty if nothing is known against it."""
        self._ending.parts.guarded(self._live.settle)
        with self.call_state.region():
            return self._sickness.reason()

    def stop(self, *, completed: bool, parts: bool = False) -> None:
        """Takes everything down; waits for what is being written. Called once.

        Args:
            completed: the script came to its end.
            parts: it ends before its time, and its newest state is worth saving.
        """
        self._has_ended = True
        self.call_state.turn_off()
        self._ending.parts.guarded(self.resumption.stop)
        others = self._live.updates_by_others
        self._ending.stop(completed=completed, parts=parts, updates_by_others=others)
