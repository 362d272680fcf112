"""The state that a treatment is about to throw away, on disk before it does so."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.actions.base import ActionContext
from supervisor.actions.rollback import way_back
from supervisor.errors import CheckpointError
from supervisor.training_state.state import ROLLBACK_PARTS, is_finite
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint
from supervisor.worker.checkpoints.checkpointer import Checkpointer
from supervisor.worker.core.worker_context import WorkerContext


class PreTreatmentCheckpoint:
    """Keeps one state for each boundary at which a treatment goes back or empties an optimizer.

    Where weights are not finite, those that a rollback would take are kept instead. The windows of
    detectors and predictor are left out: a person who goes back has overruled them.

    Args:
        whole_state: `WholeState.take`; every step before has been judged by then.
    """

    def __init__(
        self,
        worker_context: WorkerContext,
        whole_state: Callable[[], tuple[dict[str, Any], dict[str, Any]]],
        checkpointer: Checkpointer,
    ) -> None:
        self._whole_state = whole_state
        self._checkpointer = checkpointer
        self._progress = worker_context.progress
        self._run = worker_context.rundir.root
        self._warn = worker_context.warn
        self._kept_at = 0

    def keep(self, context: ActionContext, name: str) -> int | None:
        """Called at a boundary, right before the action `name` is applied; see `ActionContext`.

        A second treatment of the same boundary finds the state kept already.
        """
        step = self._progress.steps_done
        if step == 0:
            return None
        if step != self._kept_at:
            try:
                reason = self._begin(context, name, step)
            except Exception as error:  # the treatment matters more
                reason = f"{type(error).__name__}: {error}"
            if reason:
                self._warn(f"the state before {name} is not kept: {reason}")
                return None
            self._kept_at = step
        return step

    def _begin(self, context: ActionContext, name: str, step: int) -> str:
        """Hands the state to the writer; returns why there is nothing to keep, or nothing."""
        state, meta, finite, bad = self._look(context)
        reason = f"before {name}"
        if not finite:
            snapshot = way_back(context)
            if snapshot is None:
                return f"{bad} is not finite, and there is no snapshot that is"
            state = overlaid(state, snapshot.state)
            finite, still_bad = is_finite(state)
            if not finite:
                return f"{still_bad} is not finite, and in no snapshot"
            reason += f", with the weights of step {snapshot.step}: {bad} was not finite"
        command = f"supervisor resume {shlex.quote(str(self._run))} --from {step}"
        self._checkpointer.keep_abandoned(
            CapturedCheckpoint(
                step=step, state=state, meta=meta, reason=reason, abandoned=True, command=command
            )
        )
        return ""

    def _look(self, context: ActionContext) -> tuple[dict[str, Any], dict[str, Any], bool, str]:
        """Returns the state, whether it is finite on all ranks, and what is not on this one.

        Raises:
            CheckpointError: the state of another rank cannot be had.
        """
        answer = -1
        try:
            state, meta = self._whole_state()
            finite, bad = is_finite(state)
            answer = int(finite)
        finally:
            told = context.tell_ranks(answer)
        if min(told) < 0:
            raise CheckpointError("the state of another rank cannot be had")
        return state, meta, min(told) == 1, bad or "the part of another rank"


def overlaid(state: Mapping[str, Any], snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a whole state as a rollback to `snapshot` would leave it.

    Args:
        state: live, of `TrainingState.capture`.
        snapshot: of `Snapshot.state`. The optimizers' groups, whose rates are the schedule's, are
            taken from `state`; gradients are left out, as a rollback zeroes them.
    """
    parts = (ROLLBACK_PARTS | {"buffers", "extra"}) & snapshot.keys()
    whole = {**state, **{part: {**state[part], **snapshot[part]} for part in parts}}
    live = state["optimizers"]
    whole["optimizers"] = {
        name: {
            **whole["optimizers"][name],
            "param_groups": now["param_groups"],
            "attributes": now["attributes"],
        }
        for name, now in live.items()
    }
    whole["held"] = {**state["held"], **snapshot.get("held", {})}
    whole.pop("grads", None)
    return whole
