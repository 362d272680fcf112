"""Puts the state of a checkpoint back into the script that a new process runs."""

from __future__ import annotations

from typing import Any

from torch.nn import Module

from supervisor.training_state.dropped import without_dropped
from supervisor.training_state.gradients import put_in_places
from supervisor.training_state.owners import put_in_order
from supervisor.training_state.sharding.gathered import GatheredState
from supervisor.training_state.sharding.repartition import put_back_held, repartition, restricted
from supervisor.training_state.state import ALL_PARTS, TrainingState
from supervisor.training_state.tensors import first_difference
from supervisor.worker.checkpoints.starting_point import ResumePoint
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.script_state.script_state import Compared, ScriptStatePart
from supervisor.worker.script_state.user_frames import modules_in, user_frames
from supervisor.worker.script_state.user_tensors import UserTensors
from supervisor.worker.treatment.action_runner import OrderedTreatments


class StateRestorer:
    """Called once, at the boundary at which a fast-forward arrives.

    Attributes:
        compared: what came of comparing the script's own state.
    """

    def __init__(
        self,
        context: WorkerContext,
        state: TrainingState,
        held: UserTensors,
        script_state: ScriptStatePart,
        ordered: OrderedTreatments,
    ) -> None:
        self._state = state
        self._held = held
        self._script_state = script_state
        self._registry = context.registry
        self._ordered = ordered
        self._fp32 = context.order.fp32
        self.compared = Compared()

    @property
    def splits_data(self) -> bool:
        """Whether the script has a sampler that gives each rank its share of the data."""
        return self._registry.splits_data

    def put_back(self, start: ResumePoint, *, replayed: bool) -> list[str]:
        """Restores the state and the user's variables; returns what is not as it was.

        Args:
            start: the checkpoint and its state.
            replayed: every step before was replayed as it was recorded.

        Raises:
            CheckpointError: the state does not fit the model.
        """
        step, saved, meta = start.checkpoint.step, start.state, start.checkpoint.meta
        frames = user_frames()
        if not replayed:
            for module in modules_in(frames):  # a copy of a model that is known is none of them
                if len(self._registry.models) >= len(saved["models"]):
                    break
                if _is_saved(module, saved["models"]):
                    self._registry.add_model(module)
        if meta["controls"]["fp32"] or self._fp32:
            # Before the state: a model that is half precision itself would lose digits of it.
            self._ordered.fp32(step)
        problems = []
        if replayed:
            saved = without_dropped(self._registry, saved, frames)
        if "owners" in saved:
            problems = put_in_order(self._registry, saved["owners"], frames)
        put_in_places(self._registry, saved.get("gradient_places", {}))
        self._state.restore(saved)
        problems += self._differences(saved)
        if replayed:
            self.compared = self._script_state.compare(saved, self._held)
            problems += self.compared.problems
        return problems

    def reshard(
        self, start: ResumePoint, gathered: GatheredState, *, rank: int, keeps_schedules: bool
    ) -> list[str]:
        """Restores this rank's share of a state that another number of ranks saved; returns what
        is not as it was.

        Args:
            start: the checkpoint.
            gathered: the state of all ranks.
            rank: of this process.
            keeps_schedules: see `repartition`.

        Raises:
            CheckpointError: the state does not fit the models and optimizers.
        """
        frames = user_frames()
        if start.checkpoint.meta["controls"]["fp32"] or self._fp32:
            self._ordered.fp32(start.checkpoint.step)
        saved = repartition(
            gathered, self._registry, frames, rank=rank, keeps_schedules=keeps_schedules
        )
        self._state.restore(saved)
        live = self._state.capture(for_rollback=True)
        wanted = {part: saved[part] for part in ("models", "optimizers")}
        name = None if self._fp32 else first_difference(wanted, restricted(live, wanted))
        problems = [] if name is None else [f"{name} is not as it was saved"]
        return problems + put_back_held(gathered, frames)

    def _differences(self, saved: dict[str, Any]) -> list[str]:
        """Captures what was just restored and compares it with what was saved."""
        if self._fp32:
            return []
        of_optimizers = not self._registry.optimizers.keys().isdisjoint(saved.get("grads", {}))
        live = self._state.capture(include_grads=of_optimizers)
        both = ALL_PARTS & saved.keys() & live.keys()
        name = first_difference({p: saved[p] for p in both}, {p: live[p] for p in both})
        return [] if name is None else [f"{name} is not as it was saved, after it was put back"]


def _is_saved(module: Module, models: dict[str, Any]) -> bool:
    """Whether a saved model has its parameters: a wrapper around one has others."""
    names = {name for name, _ in Module.named_parameters(module)}
    return any(names <= saved.keys() for saved in models.values())
