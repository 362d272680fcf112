"""From what was seen of a step to its record, its row and its mark on the replay log.

Updates of the weights that supervision cannot see, told at the end of the process.
"""

from __future__ import annotations

import math
import time
import weakref
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.records import StepRecord
from supervisor.storage.steps.flight_recorder import (
    PENDING,
    SCALER_SKIPPED,
    UPDATE_SKIPPED,
    FlightRecorder,
)
from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.training_state.gradients import earlier_gradients
from supervisor.training_state.optimizer_state import learning_rate
from supervisor.worker.core.device_values import is_late
from supervisor.worker.core.gradient_norms import norm_of_gradients
from supervisor.worker.core.step_probe import has_values
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.outside_draws.patches_draws import wall_ns
from supervisor.worker.probes.probes import Probes
from supervisor.worker.step_record.input_watch import BatchSample, InputWatch
from supervisor.worker.step_record.script_changes import ScriptChanges
from supervisor.worker.treatment.update_controls import UpdateControls

ANOTHER_TRAINING = 20
"""Halves of a GAN, or an actor and its critic, step fewer times in a row."""

MANY_TENSORS = 1000
"""Parameters of the main optimizer beyond which they are asked for gradients of earlier steps only
where the state may be saved after the step: to ask 20,000 takes 6 to 12 ms."""

MANY_BACKWARDS = 100
"""Before the first update: more than gradients are usually accumulated over."""

NO_STEP_YET = (
    f"{MANY_BACKWARDS} backward passes and no step of a torch.optim.Optimizer yet: as long as none "
    "steps, nothing is supervised or saved, and after a kill the script begins anew. Optimizers "
    "that are not torch's (keras', fastai's) and weights changed by hand are not seen"
)

GRAPHS_REPLAYED = (
    "the script replays CUDA graphs: updates within them are no steps, not judged or saved, and no "
    "resume is exact. Graphs of forward and backward alone (torch.cuda.make_graphed_callables, "
    'torch.compile with mode="reduce-overhead") are seen'
)


def tell_unseen_updates(
    *, steps: int, backward_calls: int, updates_by_others: int, graph_replays: int = 0
) -> str | None:
    """Returns what was not supervised and what to do; None if everything was.

    A loop that changes its weights by hand (``p.data.add_``) shows us no step, and the optimizer of
    a second training is taken for the second one of the first.

    Args:
        steps: updates of the optimizer that leads.
        backward_calls: since its last update.
        updates_by_others: the same, of other optimizers.
        graph_replays: of CUDA graphs, outside of forwards, backwards and updates.
    """
    if graph_replays:
        return f"not judged: {graph_replays} replays of CUDA graphs, whatever was updated in them"
    if steps and updates_by_others >= ANOTHER_TRAINING:
        return (
            f"{updates_by_others} updates of another optimizer came after the last one of the "
            "first: that training was not supervised. Run one training in a process"
        )
    if not steps and backward_calls > 1:
        return (
            f"{backward_calls} backward passes but no step of a torch.optim.Optimizer: nothing was "
            "supervised. Weights that are changed by hand are not seen: use an optimizer"
        )
    return None


class StepRecorder:
    """Records the main optimizer's updates, each once, before it is applied.

    Attributes:
        row: of the step under way in the flight recorder; -1 until it is recorded.
        scaler: the newest GradScaler that the script has used.
        inputs: looks at the batches.
        changes: looks at what the script does to weights itself.
    """

    def __init__(
        self,
        context: WorkerContext,
        recorder: FlightRecorder,
        replay_log: ReplayLogWriter,
        probes: Probes,
        update_controls: UpdateControls,
        changes: ScriptChanges,
    ) -> None:
        self.row = -1
        self.scaler: Any = None
        self.inputs = InputWatch(is_on=context.settings.probes.enabled, tell=context.warn)
        self.changes = changes
        self._registry = changes.registry
        self._progress = context.progress
        self._recorder = recorder
        self._replay_log = replay_log
        self._probes = probes
        self._update_controls = update_controls
        self._watch = changes.watch
        self._warn = context.warn
        self._is_first_attempt = context.attempt == 1
        self._main_size = 0
        self._left: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._schedule = context.schedule
        self._is_alone = context.place.is_alone
        self._began_at = math.nan

    def graph_replays(self) -> None:
        """A CUDA graph is about to be replayed, outside of forwards, backwards and updates."""
        self._progress.graph_replays += 1
        if self._progress.graph_replays == 1:
            self._progress.lose_replay(GRAPHS_REPLAYED)
            self._warn(GRAPHS_REPLAYED, aloud=True)

    def begin_backward(self) -> None:
        """Counts a backward; the first one of a step may add to gradients of an earlier one.

        A loss that is not finite does not count if nothing of its gradients is left: the script has
        seen it, too, and left that batch out.
        """
        progress = self._progress
        probe = progress.probe
        if not probe.backward_calls:
            self._note_earlier_gradients()
        elif not self._gradients_are_untouched():
            probe.settle()
            if not math.isfinite(probe.loss) and not self._has_gradients():
                probe.loss, probe.loss_seen = 0.0, False
        probe.backward_calls += 1
        is_many = probe.backward_calls == MANY_BACKWARDS
        if is_many and not progress.steps_done and self.row < 0:  # not those of a closure
            self._warn(NO_STEP_YET, aloud=self._is_first_attempt)

    def backward_ended(self) -> None:
        """Called behind a backward while something waits on a device."""
        left = earlier_gradients(self._registry)
        self._left = [(weakref.ref(gradient), gradient._version) for gradient in left]

    def _gradients_are_untouched(self) -> bool:
        """Whether the gradients are what the backward before has left, as is known without a look
        at their values: the script has neither cleared nor changed them."""
        left, self._left = self._left, []
        now = list(earlier_gradients(self._registry)) if left else []
        return 0 < len(left) == len(now) and all(
            one() is gradient and version == gradient._version
            for (one, version), gradient in zip(left, now, strict=True)
        )

    def _note_earlier_gradients(self) -> None:
        """Notes whether a step begins with gradients of earlier ones; of a device's that is known
        when it is read with the rest. Where it is not looked, whoever saves the state all the same
        saves the gradients too."""
        progress = self._progress
        progress.grads_matter = self._main_size > MANY_TENSORS and not self._may_be_saved()
        if progress.grads_matter:
            return
        for gradient in earlier_gradients(self._registry):
            if is_late(gradient) and not gradient.is_sparse:
                there = gradient.any()
                progress.probe.on_device.put("gradients", there, self._found_earlier, add=True)
            elif has_values(gradient):
                progress.grads_matter = True

    def _may_be_saved(self) -> bool:
        """Whether the state may be saved at the boundary after this step, or could be if the step
        takes twice as long as the one before."""
        schedule, now = self._schedule, time.monotonic()
        took, self._began_at = now - self._began_at, now
        is_passed_by = (
            self._progress.steps_done + 1 < schedule.step and now + 2 * took < schedule.saving_time
        )
        return not (self._is_alone and is_passed_by)

    def _found_earlier(self, count: float) -> None:
        self._progress.grads_matter |= count > 0

    def _has_gradients(self) -> bool:
        return any(map(has_values, earlier_gradients(self._registry)))

    def clipped(self, parameters: list[torch.Tensor], max_norm: float, norm: Any) -> None:
        """The script's own clipping gives the gradient norm for free, if it is that of the main
        optimizer."""
        size, probe = len(parameters), self._progress.probe
        if size == self._main_size or not self._main_size:
            probe.saw_norm(norm)
            probe.norm_of = size
            probe.clips_at = float(max_norm)
            if self._watch.needs_norms:
                self._watch.clipped(parameters)

    def record(
        self, main: Optimizer, *, scaler_skipped: bool = False, scale: float = 1.0
    ) -> StepRecord:
        """Records the step under way, as its update is about to be made (or was left out by the
        script's scaler).

        Args:
            scale: by which the gradients are still multiplied.
        """
        progress = self._progress
        probe, step = progress.probe, progress.steps_done
        parameters = self.see_gradients(main, scale)
        if self.scaler is not None and self.scaler.is_enabled():
            if scale == 1.0:
                probe.saw_scale(self.scaler)
            else:
                probe.loss_scale = scale
        if probe.on_device.waiting or probe.on_device.sent:
            probe.settle()
        if scaler_skipped:
            probe.grad_norm = float("inf")
        if self._probes.is_on:
            looked = self._probes.before_update(step, main, parameters, probe.grad_norm)
            probe.observed = {**looked, **probe.observed}
        if probe.begins_training:
            self.inputs.forget()
            self.changes.forget()
        loss = probe.loss if probe.loss_seen else math.nan
        seen = self.inputs.judge(loss, probe.observed)
        seen |= self.changes.judge(step, loss, main, self._main_size)
        if seen:
            probe.observed = {**seen, **probe.observed}
        now = wall_ns() / 1_000_000_000
        record = probe.record(step, now, main, scaler_skipped=scaler_skipped)
        self.row = self._recorder.append(
            record,
            time=now,
            backward_calls=probe.backward_calls,
            forward_calls=probe.forward_calls,
            batch_signature=probe.signature,
            flags=SCALER_SKIPPED if scaler_skipped else 0,
        )
        return record

    def record_later(self, main: Optimizer) -> StepRecord:
        """Records the step under way without its numbers, which are still to come from a device:
        `complete` is told them."""
        progress = self._progress
        probe, step = progress.probe, progress.steps_done
        self.changes.look(step, main, self._main_size)
        now = wall_ns() / 1_000_000_000
        record = probe.record(step, now, main)
        record.loss_seen = record.grad_norm_seen = False
        observed, record.observed = record.observed, {}
        self.row = self._recorder.append(
            record,
            time=now,
            backward_calls=probe.backward_calls,
            forward_calls=probe.forward_calls,
            batch_signature=probe.signature,
            flags=PENDING,
        )
        record.observed = observed
        return record

    def complete(self, record: StepRecord, row: int, batch: BatchSample | None) -> None:
        """The numbers of a step are in its record: what follows from them is added, and its row is
        completed.

        Args:
            batch: its input, as `InputWatch.take` gave it.
        """
        loss = record.loss if record.loss_seen else math.nan
        seen = self.inputs.judge_earlier(batch, loss, record.observed)
        seen |= self.changes.judge(record.step, loss)
        if seen:
            record.observed = {**seen, **record.observed}
        self._recorder.complete(row, record)

    def mark_skipped(self, row: int | None = None) -> None:
        """The update of a step is left out: of the one under way, or of the one with this row."""
        self._recorder.mark(self.row if row is None else row, flags=UPDATE_SKIPPED)

    def finish(self, main: Optimizer) -> None:
        """The update of the recorded step was made: the next step begins."""
        progress, probe = self._progress, self._progress.probe
        self._replay_log.append_step(
            progress.steps_done,
            learning_rate(main),
            probe.backward_calls,
            probe.forward_calls,
            probe.signature,
        )
        controls = self._update_controls.controls
        if controls.ramp is not None or controls.adaptive is not None:
            controls.advance(math.nan if probe.grad_norm is None else probe.grad_norm)
        probe.forget()
        if self._probes.is_on:
            probe.observed.update(self._probes.after_update(progress.steps_done))
        self.row = -1
        progress.steps_done += 1
        if progress.steps_done >= self._probes.next_step:
            self._probes.start(progress.steps_done)

    def see_gradients(self, main: Optimizer, scale: float = 1.0) -> list[torch.Tensor]:
        """Computes the gradient norm, unless the script's clipping has given it; returns all
        parameters."""
        probe = self._progress.probe
        parameters = self._update_controls.parameters(main)
        self._main_size = len(parameters)
        if probe.grad_norm is None or probe.norm_of != self._main_size:
            # As it is after any clipping.
            probe.saw_norm(norm_of_gradients(self._update_controls.gradients(main)), scale)
            probe.clips_at = math.inf
            probe.norm_of = self._main_size
        return parameters
