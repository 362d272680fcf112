"""The state of the training in a checkpoint, and what its manifest needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from supervisor.storage.steps.replay_log import REPLAY_LOG_FORMAT
from supervisor.training_state.gradients import gradient_places
from supervisor.training_state.owners import find_owners
from supervisor.training_state.sharding.repartition import layouts, transient_buffers
from supervisor.training_state.state import TrainingState
from supervisor.worker.core.graphs_across import GRAPHS_ACROSS, KEPT_GRAPHS
from supervisor.worker.core.loop_count import IS_COUNTED, SPLITS_DATA, UPDATES
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.core.progress import CASTS_STAY, OLDER_CASTS
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.outside_draws.outside_draws import META, OUTSIDE
from supervisor.worker.script_state.user_tensors import UserTensors

HAS_GRAPH = (
    "keeps its graph across updates, which no checkpoint holds: detach it if no backward follows"
)
STEP_IS_BEGUN = "a part of the step was computed before the forward of its checkpoint"
RESULT_LOST = "what the optimizer's step had returned at its checkpoint cannot be saved"


class WholeState(Part):
    """The training's own state: models, optimizers and what belongs to them, and how the script
    came here; live, not copied."""

    name = "state"

    def __init__(self, context: WorkerContext, state: TrainingState, held: UserTensors) -> None:
        self._state = state
        self._registry = state.registry
        self._held = held
        self._progress = context.progress
        self._warn = context.warn
        self._told_of_casts = False

    def for_rollback(self) -> tuple[Mapping[str, Any], int]:
        """What a snapshot holds, live; and how often the script's variables were looked at."""
        held = self._held
        return self._state.capture(held=held.lasting(), for_rollback=True), held.looks

    def save(self, point: SavePoint) -> None:
        progress, registry, held = self._progress, self._registry, point.held
        progress.probe.settle()
        state = self._state.capture(
            held=held, include_grads=progress.grads_matter or not _is_training(point.call)
        )
        state["gradient_places"] = gradient_places(registry)
        state["owners"] = find_owners(registry, point.frames)
        state["layouts"] = layouts(registry, held)
        state["transient"] = transient_buffers(registry)
        result = progress.update_result
        is_tensor = type(result) is torch.Tensor and result.layout is torch.strided
        if is_tensor or isinstance(result, (bool, int, float, str)):
            state["update_result"] = result.detach().clone() if is_tensor else result
        point.hold(state)
        point.note(
            {
                "update_result_lost": result is not None and "update_result" not in state,
                "tape_format": REPLAY_LOG_FORMAT,
                "tape_lost": progress.replay_lost,
                "at_update": progress.at_update,
                "step_is_begun": progress.step_is_begun,
                "older_casts": self._older_casts(),
                UPDATES: progress.steps_done + progress.loop_shift,
                SPLITS_DATA: registry.splits_data,
                IS_COUNTED: progress.is_counted,
                "loss_under_way": progress.probe.loss if progress.probe.loss_seen else None,
                GRAPHS_ACROSS: progress.graphs.seen,
                KEPT_GRAPHS: progress.graphs.kept(held, progress.steps_done),
                META: OUTSIDE.mark(),
            }
        )

    def after_state(self, arrived: Arrived) -> list[str]:
        """What was not in the checkpoint."""
        meta = arrived.meta
        problems = [STEP_IS_BEGUN] if meta.get("step_is_begun") else []
        problems += [RESULT_LOST] if meta.get("update_result_lost") else []
        problems += [OLDER_CASTS] if meta.get("older_casts") else []
        problems += [f"{path} {HAS_GRAPH}" for path in meta.get(KEPT_GRAPHS, [])]
        return [*problems, *meta.get("held_left_out", []), *arrived.state.get("left_out", [])]

    def _older_casts(self) -> bool:
        progress = self._progress
        before = progress.position - progress.at_update  # a step may end within its own context
        found = progress.autocast.has_older_casts(before)
        if found and not self._told_of_casts:
            self._told_of_casts = True
            self._warn(CASTS_STAY, aloud=True)
        return found


def _is_training(call: Mapping[str, Any]) -> bool:
    """Whether the next thing that the script does with gradients is to clear them or add to them.
    Behind an update, and in an evaluation, it may first look at those that it has."""
    return bool(call) and torch.is_grad_enabled() and call["module"].training
