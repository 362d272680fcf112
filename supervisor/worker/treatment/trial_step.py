"""One step of the script that is computed with the weights of an older snapshot, too.

The script's step is its own: its weights, its loss, its update. Beside it each operator is called a
second time with what the older weights would have given (`OlderValues`), up to the loss. So nothing
has to be put back, and a healthy run that is asked ends with the weights of plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from supervisor.errors import RunDirectoryError
from supervisor.held_memory import HeldMemory
from supervisor.ladder.trial_steps import TRIAL_HIGH, TRIAL_LOSS, TRIAL_LOW, TRIAL_OF, is_trial
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.storage.steps.flight_recorder import FlightReader, FlightRecorder
from supervisor.training_state.model_state import model_tensors
from supervisor.training_state.snapshot import Snapshot, state_bytes
from supervisor.training_state.state import TrainingState
from supervisor.worker.core.call_state import has_compiled, is_capturing, is_transforming
from supervisor.worker.core.part import Arrived, Part
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.treatment.older_values import OlderValues

TRIAL = "trial"
"""Owner of the copy in `HeldMemory`."""

_ORDINARY = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
Models = dict[str, dict[str, torch.Tensor]]


class OlderWeights(Part):
    """Called at the boundary before it (`begin`), around its forwards, before its backwards, and
    before its update.

    Its breaker is off where several ranks train, and in a replay.

    Attributes:
        is_on: the step under way is a trial, or will be.
    """

    name = "trial step"

    def __init__(
        self,
        context: WorkerContext,
        state: TrainingState,
        memory: HeldMemory,
        pipeline: Pipeline,
        recorder: FlightRecorder,
    ) -> None:
        if context.is_experiment or not context.place.is_alone:
            context.breakers(self.name).turn_off()
        self.is_on = False
        self._registry = state.registry
        self._state = state
        self._memory = memory
        self._progress = context.progress
        self._pipeline = pipeline
        self._recorder = recorder
        self._part = context.breakers("trial step")
        self._recorded: dict[int, StepRecord] = {}
        self._values: OlderValues | None = None
        self._forget()

    def _forget(self) -> None:
        if self._values is not None:
            self._values.stop()
        self.is_on = False
        self._step = self._of = -1
        self._low = self._loss = 0.0
        self._losses = 0
        self._values = None
        self._memory.holds(TRIAL, 0, 0)

    def goes_live(self, arrived: Arrived) -> None:
        """After an exact resume, trials that the killed attempt has made since the checkpoint are
        not made again but taken from its record, because the snapshots of then are gone."""
        if arrived.is_exact:
            try:
                with FlightReader(self._recorder.path) as reader:
                    records = reader.records(arrived.steps_recorded)
            except (OSError, RunDirectoryError):
                records = []
            self._recorded = {r.step: r for r in records if is_trial(r)}
        if self._is_recorded():
            self._arm()
        trials = self._pipeline.ladder.trials
        trials.is_asked = trials.is_next = self.is_on  # else the next step asks again

    def _is_recorded(self) -> bool:
        is_asked = self._pipeline.ladder.trials.is_asked
        return is_asked and self._progress.steps_done in self._recorded

    # --- at the boundary ---------------------------------------------------------------------

    def start(self, choose: Callable[[], Snapshot | None]) -> str:
        """The next step is to be a trial; returns why it cannot be.

        Args:
            choose: gives the snapshot from before the onset; it may have to be read from the disk.
        """
        if self._is_recorded():
            self._arm()
            return ""
        refusal = self._refusal()
        if refusal:
            return refusal
        snapshot = choose()
        if snapshot is None:
            return "there is no snapshot from before the onset"
        live, older = self._live(), snapshot.state["models"]
        if not _fits(live, older):
            return "a tensor is of another kind or shape than in the snapshot"
        low = self._pipeline.level_at(snapshot.step)
        if math.isnan(low):
            return f"the losses of step {snapshot.step} are not known"
        pairs = [(t, older[model][name]) for model in live for name, t in live[model].items()]
        values = OlderValues(pairs, lambda size: self._memory.allows(TRIAL, size))
        if values.refusal:
            return values.refusal
        self._arm()
        self._memory.holds(TRIAL, state_bytes({"models": live}), 1)
        self._of, self._low, self._values = snapshot.step, low, values
        return ""

    def _arm(self) -> None:
        self._forget()
        self.is_on, self._step = True, self._progress.steps_done

    def _refusal(self) -> str:
        if not self._part.is_on:
            return "several ranks train, it is a replay, or it has failed too often"
        if has_compiled():
            return "compiled code cannot be computed operator by operator"
        state = self._state.capture(for_rollback=True)
        if any(one["parameters"] for one in state["optimizers"].values()):
            return "the optimizer has parameters that no model has"
        if not self._memory.allows(TRIAL, state_bytes({"models": state["models"]})):
            return "there is no room for another copy of the weights"
        return ""

    # --- the step ----------------------------------------------------------------------------

    def forward(self, call: Callable[[], Any]) -> Any:
        """Called instead of a forward of the script that builds a graph, while `is_on`. What
        follows it up to the backward is looked at, too."""
        values = self._values
        is_in_time = self._progress.steps_done == self._step
        if values is None or not is_in_time or is_capturing() or is_transforming():
            return call()
        try:
            values.start()
        except BaseException as error:
            self._forget()
            self._part.caught(error)
        try:
            return call()
        except BaseException:
            values.stop()  # the script may end here
            raise

    def backward_begins(self, roots: Any, scaled: tuple[Any, Any] | None) -> None:
        """Notes what the loss would be.

        Args:
            scaled: what a loss scaler has made, and of which loss.
        """
        if self._values is not None:
            with self._part:
                self._values.stop()
                self._note_loss(self._values, roots, scaled)

    def _note_loss(self, values: OlderValues, roots: Any, scaled: tuple[Any, Any] | None) -> None:
        is_one = isinstance(roots, torch.Tensor) or not isinstance(roots, Iterable)
        for root in (roots,) if is_one else roots:
            if isinstance(root, torch.Tensor) and root.numel() == 1:
                loss = scaled[1] if scaled is not None and root is scaled[0] else root
                value = values.value(loss)
                self._loss += math.nan if value is None else value
                self._losses += 1

    def gradients_begin(self) -> None:
        """Before gradients that are no update's: torch computes some in another way while someone
        looks."""
        if self._values is not None:
            with self._part:
                self._values.stop()

    def update_begins(self) -> None:
        """Called before the main optimizer's update is judged: what was found belongs to the step's
        record."""
        probe, step = self._progress.probe, self._progress.steps_done
        with self._part:
            if step == self._step and step in self._recorded:
                probe.observed = {**probe.observed, **_trial_in(self._recorded.pop(step))}
            elif step == self._step and self._losses and math.isfinite(self._loss):
                probe.settle()
                seen = {TRIAL_OF: float(self._of), TRIAL_LOSS: self._loss}
                seen |= {TRIAL_LOW: self._low, TRIAL_HIGH: probe.loss}
                probe.observed = {**probe.observed, **seen}
            self._forget()

    def _live(self) -> Models:
        return {name: model_tensors(model) for name, model in self._registry.models.items()}


def _trial_in(record: StepRecord) -> dict[str, float]:
    names = (TRIAL_OF, TRIAL_LOSS, TRIAL_LOW, TRIAL_HIGH)
    return {name: record.observed[name] for name in names}


def _fits(live: Models, saved: Models) -> bool:
    """Whether each live tensor can take in its saved values."""
    return live.keys() <= saved.keys() and all(
        live[model].keys() == saved[model].keys()
        and all(_is_one(tensor, saved[model][name]) for name, tensor in live[model].items())
        for model in live
    )


def _is_one(live: torch.Tensor, saved: torch.Tensor) -> bool:
    is_plain = type(live) in _ORDINARY and live.layout is torch.strided
    return is_plain and live.shape == saved.shape and live.dtype is saved.dtype
