"""What an action is, and what it may use."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from supervisor.actions.controls import Controls
from supervisor.errors import StateTorn
from supervisor.records import ActionResult, Decision
from supervisor.settings import PolicySettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import Snapshot, SnapshotRing
from supervisor.training_state.state import TrainingState

Moment = Literal["update", "boundary"]


def _nothing(_: Any) -> None:
    return None


@dataclass(kw_only=True)
class ActionContext:
    """What the worker lends an action for one call.

    Attributes:
        step: the step that is being judged (`moment` update) or was just made (boundary).
        policy, decision: how and why.
        controls: what the action may turn.
        registry, state, snapshots: the run's objects, their state, copies of it.
        recent_grad_norms: norms before clipping of the last steps, oldest first, NaN included.
        keep_state: (this context, the action's name) → the step under which the state as it is now
            is being written to the disk; None if it is not. Called right before an action that
            `abandons_state`; never raises.
        save_checkpoint: reason → whether one was written, or is being written.
        request_restart, request_stop: reason → carried out by the worker at the boundary.
        pipeline_restore: takes `Snapshot.extras` and ``held`` of its state, after a rollback.
        begin_trial: has the next step made with the weights of the snapshot that its argument
            gives; returns why that cannot be.
        tell_ranks: a number → what all ranks told of the same call, in their order; -1 for one that
            cannot tell. Called on all ranks alike, at the same place of the same action.
        skip_batches: drops the next n batches; None when the script does not use
            `supervisor.batches` or a loader that was found.
        script_clips: the script clips gradients itself.
        uses_batch_size: the script asks `supervisor.batch_size`.
        uses_autocast: autocast regions were seen; None = not known.
    """

    step: int
    policy: PolicySettings
    decision: Decision
    controls: Controls
    registry: Registry
    state: TrainingState
    snapshots: SnapshotRing
    recent_grad_norms: Sequence[float] = ()
    keep_state: Callable[[ActionContext, str], int | None] = field(
        default=lambda context, name: None
    )
    save_checkpoint: Callable[[str], bool] = field(default=lambda reason: False)
    request_restart: Callable[[str], None] = _nothing
    request_stop: Callable[[str], None] = _nothing
    pipeline_restore: Callable[[Mapping[str, Any]], None] = _nothing
    begin_trial: Callable[[Callable[[], Snapshot | None]], str] = field(
        default=lambda choose: "no training is under way"
    )
    tell_ranks: Callable[[int], list[int]] = field(default=lambda number: [number])
    skip_batches: Callable[[int], None] | None = None
    script_clips: bool = False
    uses_batch_size: bool = False
    uses_autocast: bool | None = None


class Action(abc.ABC):
    """One thing that can be done about trouble.

    Attributes:
        name: as in policies, in `Decision.actions` and in the journal.
        moment: ``update``: applied at once, before the update of the judged step. ``boundary``:
            at the entry of the first root forward after it.
        abandons_state: `undo` cannot bring back what it changes: the state is kept on disk first.
        changes_state: it may write to weights or optimizers; what is known of them begins anew.
        cost: what it costs the run, in words, for `supervisor policies`.
    """

    name: str
    moment: Moment = "boundary"
    abandons_state: bool = False
    changes_state: bool = True
    cost: str = "nothing"

    def precondition(self, context: ActionContext) -> str | None:
        """Returns why the action cannot be applied now, or None."""
        return None

    @abc.abstractmethod
    def apply(self, context: ActionContext) -> ActionResult:
        """Does it; only when `precondition` returned None. See `carry_out`."""

    def undo(self, context: ActionContext) -> ActionResult:
        """Takes it back once the run is healthy; does nothing where there is nothing to."""
        return ActionResult(name=self.name, applied=False, detail="there is nothing to take back")

    def done(self, detail: str, **fields: Any) -> ActionResult:
        """Returns the result of success."""
        return ActionResult(name=self.name, applied=True, detail=detail, fields=fields)


def carry_out(action: Action, context: ActionContext, *, undo: bool = False) -> ActionResult:
    """Applies (or takes back) `action`, timed; the worker calls actions through this alone.

    Never raises: a failed precondition and an exception both give ``applied=False`` with the
    reason, so that no treatment can end the training that it was meant to save. One that leaves
    the state torn (`StateTorn`) asks for a restart too: half-old weights are never trained on.
    """
    started = time.perf_counter()
    try:
        refusal = None if undo else action.precondition(context)
        if refusal is not None:
            result = ActionResult(name=action.name, applied=False, detail=refusal)
        else:
            kept = None
            if action.abandons_state and not undo:
                kept = context.keep_state(context, action.name)
            result = action.undo(context) if undo else action.apply(context)
            if kept is not None:
                result = replace(result, fields={**result.fields, "kept_step": kept})
    except StateTorn as error:
        detail = f"failed half-way, so the process restarts from its checkpoint: {error}"
        context.request_restart(f"{action.name} {detail}")
        result = ActionResult(name=action.name, applied=False, detail=detail)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        result = ActionResult(name=action.name, applied=False, detail=detail)
    return replace(result, cost_s=time.perf_counter() - started)
