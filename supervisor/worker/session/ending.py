"""What is done when the worker's process ends."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.errors import pass_on
from supervisor.events.state_events import WarningEvent
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.steps.tape import TapeWriter
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


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Tells what is left to tell, and waits for what is being written."""

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

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            pass_on(error)
            with contextlib.suppress(Exception):  # the disk may be full or gone
                said = f"at the end: {type(error).__name__}: {error}"
                self.journal.write(
                    WarningEvent(message=said, trace="".join(traceback.format_exception(error)))
                )

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
