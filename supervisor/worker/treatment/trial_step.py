"""One step of the script with the weights of an older snapshot, of which nothing stays.

Only within the script's own forwards are the older weights in place. Before a forward returns, the
present ones are back, with their buffers, and so are all generators. So nothing that the script
does between its calls (a checkpoint of its own, an average, the end of its loop) sees other weights
than its own. The gradients are a mixture, and the update is left out; behind it the state is
compared, to the bit, with what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from supervisor.errors import RunDirectoryError, StateTorn, pass_on
from supervisor.ladder.trial_steps import TRIAL_HIGH, TRIAL_LOW, TRIAL_OF
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.storage.steps.flight_recorder import FlightReader, FlightRecorder
from supervisor.training_state.model_state import model_tensors
from supervisor.training_state.module_attributes import module_attributes, put_back_attributes
from supervisor.training_state.optimizer_state import restore_optimizer
from supervisor.training_state.rng import RngState
from supervisor.training_state.snapshot import Snapshot, SnapshotRing, copy_state, state_bytes
from supervisor.training_state.state import TrainingState, digest
from supervisor.training_state.tensors import outside_autograd, write_into
from supervisor.worker.core.part import Arrived, Part
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_warnings import RunWarnings

LEFT_OUT = "a trial step"
"""Why the update is left out; it has a receipt of its own."""
TRIAL = "trial"
"""Owner of the copy in `HeldMemory`."""

_ORDINARY = (torch.Tensor, torch.nn.Parameter)
Models = dict[str, dict[str, torch.Tensor]]


class OlderWeights(Part):
    """Called at the boundary before it (`begin`), around its forwards, and around its update.

    Its breaker is off where several ranks train, and in a replay.

    Attributes:
        is_on: the step under way is a trial, or will be.
    """

    name = "trial step"

    def __init__(
        self,
        *,
        state: TrainingState,
        snapshots: SnapshotRing,
        progress: Progress,
        pipeline: Pipeline,
        recorder: FlightRecorder,
        schedule: BoundarySchedule,
        warn: RunWarnings,
        barrier: ErrorBarrier,
    ) -> None:
        self.is_on = False
        self._registry = state.registry
        self._state = state
        self._snapshots = snapshots
        self._memory = snapshots.memory
        self._progress = progress
        self._pipeline = pipeline
        self._recorder = recorder
        self._schedule = schedule
        self._warn = warn
        self._part = barrier("trial step")
        self._recorded: dict[int, StepRecord] = {}
        self._opened: tuple[Models, dict[str, Any]] | None = None
        self._size = 0
        self._forget()

    def _forget(self) -> None:
        self.is_on = False
        self._step = -1
        self._snapshot: Snapshot | None = None
        self._is_of_ring = False  # where a later one may take its memory
        self._levels = (0.0, 0.0)
        self._kept: Models = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._buffers: list[tuple[dict[str, Any], str, torch.Tensor | None]] = []
        self._optimizers: dict[str, Any] | None = None
        self._memory.holds(TRIAL, self._size, 0)

    def goes_live(self, arrived: Arrived) -> None:
        """After an exact resume, trials that the killed attempt has made since the checkpoint are
        not made again but taken from its record, because the snapshots of then are gone."""
        if arrived.is_exact:
            try:
                with FlightReader(self._recorder.path) as reader:
                    records = reader.records(arrived.steps_recorded)
            except (OSError, RunDirectoryError):
                records = []
            self._recorded = {r.step: r for r in records if TRIAL_OF in r.observed}
        if self._is_recorded():
            self._arm(None)
        trials = self._pipeline.ladder.trials
        trials.is_asked = trials.is_next = self.is_on  # else the next step asks again

    def _is_recorded(self) -> bool:
        is_asked = self._pipeline.ladder.trials.is_asked
        return is_asked and self._progress.steps_done in self._recorded

    # --- at the boundary ---------------------------------------------------------------------

    def begin(self, choose: Callable[[], Snapshot | None]) -> str:
        """The next step is to be a trial; returns why it cannot be.

        Args:
            choose: gives the snapshot from before the onset; it may have to be read from the disk.
        """
        if self._is_recorded():
            self._arm(None)
            return ""
        refusal = self._refusal()
        if refusal:
            return refusal
        snapshot = choose()
        if snapshot is None:
            return "there is no snapshot from before the onset"
        if not _fits(self._live(), snapshot.state["models"]):
            return "a tensor is of another kind or shape than in the snapshot"
        levels = self._pipeline.trial_levels(snapshot.step)
        if not levels[0] < levels[1]:
            return f"the losses of step {snapshot.step} are not known, or were no better"
        self._arm(snapshot, levels)
        return ""

    def _arm(self, snapshot: Snapshot | None, levels: tuple[float, float] = (0.0, 0.0)) -> None:
        self._forget()
        self.is_on = True
        self._step, self._snapshot, self._levels = self._progress.steps_done, snapshot, levels
        self._is_of_ring = snapshot is not None and _is_in(snapshot, self._snapshots)

    def _refusal(self) -> str:
        progress, registry = self._progress, self._registry
        if not self._part.is_on:
            return "several ranks train, it is a replay, or it has failed too often"
        if progress.backwards_of_last != 1 or progress.grads_matter:
            return "a step has several backwards, or adds to gradients of earlier ones"
        if progress.graphs.seen:
            return "graphs are kept across updates"
        optimizers = list(registry.optimizers.values())
        if len(optimizers) != 1 or isinstance(optimizers[0], torch.optim.LBFGS):
            return "there are several optimizers, or it evaluates a closure several times"
        if any(scaler.is_enabled() for scaler in registry.scalers.values()):
            return "a loss scaler would follow the trial's gradients"
        state = self._state.capture(for_rollback=True)
        if state["left_out"] or any(state["extra"].values()):
            return "a part of the state cannot be compared"
        if any(one["parameters"] for one in state["optimizers"].values()):
            return "the optimizer has parameters that no model has"
        self._size = state_bytes({"models": state["models"], "optimizers": state["optimizers"]})
        if not self._memory.allows(TRIAL, self._size):
            return "there is no room for another copy of the state"
        return ""

    # --- the step ----------------------------------------------------------------------------

    def forward(self, call: Callable[[], Any]) -> Any:
        """Called instead of a forward of the script that builds a graph, while `is_on`."""
        try:
            try:
                self._open()
            except BaseException as error:
                self._close()
                self._forget()
                self._part.caught(error)
            return call()
        finally:
            self._close()

    def _open(self) -> None:
        """Puts the older weights in place, if the forward that begins is one of the trial's."""
        progress, snapshot = self._progress, self._snapshot
        if progress.steps_done != self._step or progress.probe.backward_calls:
            return
        if snapshot is not None and self._is_of_ring and not _is_in(snapshot, self._snapshots):
            return
        live, random = self._live(), RngState.capture()
        if not self._kept:
            self._memory.holds(TRIAL, self._size, 1)
        self._note_parts()
        self._kept = copy_state(live, self._kept or None)
        self._opened = live, random
        if snapshot is not None:
            _write(live, snapshot.state["models"])

    def _close(self) -> None:
        """The present weights again, and what the forward has drawn is given back."""
        if self._opened is None:
            return
        try:
            self._give_back(*self._opened)
        except BaseException as error:
            try:  # a signal's handler may have raised in the middle of it
                self._give_back(*self._opened)
            except BaseException as again:
                self._is_torn(again)
            pass_on(error)
        finally:
            self._opened = None

    def _give_back(self, live: Models, random: dict[str, Any]) -> None:
        self._put_back_parts()
        _write(live, self._kept)
        RngState.restore(random)

    def _note_parts(self) -> None:
        """What of modules a forward may replace."""
        models = self._registry.models
        self._attributes = {name: module_attributes(model) for name, model in models.items()}
        self._buffers = [
            (part._buffers, name, buffer)
            for model in models.values()
            for part in model.modules()
            for name, buffer in part._buffers.items()
        ]

    def update_begins(self) -> bool:
        """Called before the lead's update is judged; returns whether the step was a trial, so that
        the update is to be left out."""
        probe, step, snapshot = self._progress.probe, self._progress.steps_done, self._snapshot
        if step != self._step or not self._kept:
            self._forget()
            return False
        if snapshot is None:
            recorded = self._recorded.pop(step)
            probe.loss, probe.loss_seen = recorded.loss, recorded.loss_seen
            seen: dict[str, float] = {**recorded.observed}
        else:
            low, high = self._levels
            seen = {TRIAL_OF: float(snapshot.step), TRIAL_LOW: low, TRIAL_HIGH: high}
        probe.observed = {**probe.observed, **seen}
        self._optimizers = {}
        try:
            self._keep_weights()
            self._optimizers = copy_state(self._optimizers_now())
        except BaseException as error:  # left out all the same, and then found to be unproved
            self._part.caught(error)
        return True

    def update_ended(self) -> None:
        """Called behind the update that was left out: proves that nothing has changed."""
        try:
            if self._optimizers is not None:
                self._put_back()
        except BaseException as error:
            self._is_torn(error)
        finally:
            self._forget()

    def _is_torn(self, error: BaseException) -> None:
        pass_on(error)
        why = f"the state after a trial step is not the one before it: {error}"
        self._warn(why, aloud=True)
        self._schedule.ask_for_restart(why)

    def _keep_weights(self) -> None:
        """As the script has written them since its forward: rounded ones are for that alone."""
        for model, tensors in self._live().items():
            own = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
            kept = self._kept[model]
            kept |= copy_state(own, {name: kept[name] for name in own})

    def _put_back_parts(self) -> None:
        for name, model in self._registry.models.items():
            put_back_attributes(model, self._attributes.get(name, {}))
        for owner, name, buffer in self._buffers:
            if owner.get(name) is not buffer:
                owner[name] = buffer

    def _put_back(self) -> None:
        self._put_back_parts()
        live, kept = self._live(), self._kept
        if digest(live) != digest(kept):  # activations computed again in the backward, hooks
            _write(live, kept)
        optimizers = self._optimizers or {}
        if digest(self._optimizers_now()) != digest(optimizers):  # one that counts empty steps, too
            for name, optimizer in self._registry.optimizers.items():
                restore_optimizer(optimizer, optimizers[name], groups=True)
        is_same = digest(self._live()) == digest(kept)
        if not (is_same and digest(self._optimizers_now()) == digest(optimizers)):
            raise StateTorn("it could not be put back")

    # --- the state ---------------------------------------------------------------------------

    def _live(self) -> Models:
        return {name: model_tensors(model) for name, model in self._registry.models.items()}

    def _optimizers_now(self) -> dict[str, Any]:
        found: dict[str, Any] = self._state.capture(for_rollback=True)["optimizers"]
        return found


def _is_in(snapshot: Snapshot, ring: SnapshotRing) -> bool:
    return any(one is snapshot for one in ring.all())


def _fits(live: Models, saved: Models) -> bool:
    """Whether each live tensor can take in its saved values in place, and give them back."""
    return live.keys() <= saved.keys() and all(
        live[model].keys() == saved[model].keys()
        and all(_is_one(tensor, saved[model][name]) for name, tensor in live[model].items())
        for model in live
    )


def _is_one(live: torch.Tensor, saved: torch.Tensor) -> bool:
    is_plain = type(live) in _ORDINARY and live.layout is torch.strided
    return is_plain and live.shape == saved.shape and live.dtype is saved.dtype


def _write(live: Models, saved: Models) -> None:
    """Writes values into tensors, tied ones once, unseen by autograd."""
    written: set[int] = set()
    with outside_autograd():
        for model, tensors in live.items():
            for name, tensor in tensors.items():
                if id(tensor) not in written:
                    written.add(id(tensor))
                    write_into(tensor, saved[model][name])
    torch.clear_autocast_cache()
