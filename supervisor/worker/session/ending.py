"""What is done when the worker's process ends."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch

from supervisor.errors import pass_on
from supervisor.events.state_events import WarningEvent
from supervisor.pipeline import Pipeline
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.steps.tape import TapeWriter
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.registry import Registry
from supervisor.training_state.tensors import local
from supervisor.worker.capture.checkpointer import Checkpointer
from supervisor.worker.evidence.model_scene import ModelScene
from supervisor.worker.ground.error_barrier import Part
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_health import RunHealth
from supervisor.worker.group.agreement import Agreement
from supervisor.worker.inspection.experiment import Experiment
from supervisor.worker.live.compute_listener import ComputeListener
from supervisor.worker.live.monitor import Monitor
from supervisor.worker.live.parting_checkpoint import PartingCheckpoint
from supervisor.worker.live.unseen_updates import tell_unseen_updates
from supervisor.worker.probes.probes import Probes
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.treatment.dispatcher import Dispatcher

_POISONED_STEPS = 2
"""In a row: the update of the first made the loss of the second."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Tells what is left to tell, and waits for what is being written."""

    registry: Registry
    pipeline: Pipeline
    progress: Progress
    health: RunHealth
    agreement: Agreement
    journal: Journal
    monitor: Monitor
    dispatcher: Dispatcher
    experiment: Experiment | None
    samples: SampleGuard
    probes: Probes
    model_scene: ModelScene
    parting: PartingCheckpoint
    compute: ComputeListener
    saving: Part
    checkpointer: Checkpointer
    tape: TapeWriter
    script_files: ScriptFiles

    def sickness(self) -> str:
        """Why the training's result is no good; empty if nothing is known against it.

        Called before `end`, of a script that came to its end; never fails.
        """
        return str(self._guarded(lambda: self._bad_weights() or self._bad_course()) or "")

    def _bad_weights(self) -> str:
        """Only what the training's own optimizer has changed: a script may hold others, such as
        those of a trial that diverged."""
        lead = self.monitor.lead_optimizer
        if lead is None:
            since = self.health.bad_losses
            if since < _POISONED_STEPS:  # a single one may come of its batch
                return ""
            return f"the loss was not finite in the last {since} steps, and their updates were made"
        parameters = optimizer_parameters(lead)
        names = {
            id(parameter): f"{model}.{name}"
            for model, module in self.registry.models.items()
            for name, parameter in module.named_parameters()
        }
        bad = [p for p in parameters if p.is_floating_point() and not _is_finite(p)]
        if not bad:
            return ""
        first = names.get(id(bad[0]), "the first")
        return f"{len(bad)} of {len(parameters)} trained weights are not finite ({first})"

    def _bad_course(self) -> str:
        ladder = self.pipeline.ladder
        is_sick = self.health.is_alarm or self.health.bad_losses > 0 or ladder.waits_for_level
        if not is_sick or not ladder.has_spent_its_budget:
            return ""
        return "the budget of treatments is spent (policy: budget), and the trouble is not over"

    def end(self, *, completed: bool, parts: bool) -> None:
        """Called once, when supervision is off. A failure leaves the script's own result as it is,
        and keeps nothing else from being done.

        Args:
            completed: the script came to its end.
            parts: it ends before its time, and its newest state is worth saving.
        """
        steps = self.progress.steps_done
        self._guarded(self.agreement.end)
        self._guarded(lambda: self._tell_unseen(steps))
        if self.experiment is not None:
            self._guarded(self.experiment.end)
        self._guarded(self.dispatcher.judge_waiting)
        if parts:
            with self.saving:
                self.parting.write()
        self._guarded(self.samples.tell)
        self._guarded(self.probes.end)
        self._guarded(self.compute.end)
        self._guarded(lambda: self.model_scene.at_end(steps - 1))
        self._guarded(lambda: self._close(steps, completed=completed))
        self._guarded(self.tape.close)
        if completed:
            self._guarded(self.script_files.end)
        self._guarded(self.journal.close)

    def _guarded(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except BaseException as error:
            pass_on(error)
            with contextlib.suppress(Exception):  # the disk may be full or gone
                said = f"at the end: {type(error).__name__}: {error}"
                self.journal.write(
                    WarningEvent(message=said, trace="".join(traceback.format_exception(error)))
                )
            return None

    def _tell_unseen(self, steps: int) -> None:
        unseen = tell_unseen_updates(
            steps=steps,
            backward_calls=self.progress.probe.backward_calls,
            updates_by_others=self.monitor.updates_by_others,
        )
        if unseen is not None:
            self.journal.write(WarningEvent(message=unseen, aloud=True))

    def _close(self, steps: int, *, completed: bool) -> None:
        if completed and not self.health.in_trouble(steps):
            self.checkpointer.close(ripen=(steps, self.health.last_trouble_step))
        else:
            self.checkpointer.close()


def _is_finite(parameter: torch.Tensor) -> bool:
    held = local(parameter)
    if held.is_meta or held.layout != torch.strided:
        return True
    return bool(torch.isfinite(held).all())
