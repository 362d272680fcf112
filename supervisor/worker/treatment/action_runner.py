"""Carries out actions, at once or at the next boundary, and writes their receipts.

What bad numbers leave behind, put right. Treatments that the parent orders for a new attempt, by
the reason for which one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.actions.base import Action, ActionContext, carry_out
from supervisor.actions.catalogue import build_actions
from supervisor.actions.checkpoint_activations import ActivationCheckpointing
from supervisor.actions.controls import Ramp
from supervisor.codes import ActionOutcome, DecisionSource
from supervisor.events.step_events import ActionEvent, ActionUndone, RollbackEvent
from supervisor.pipeline import Pipeline
from supervisor.records import ActionResult, Cause, Decision, plain
from supervisor.training_state.model_state import heal_buffers
from supervisor.training_state.snapshot import Snapshot, SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.checkpoints.pre_treatment_checkpoint import PreTreatmentCheckpoint
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.ranks.agreement import Agreement
from supervisor.worker.script_state.user_frames import user_frames
from supervisor.worker.script_state.user_tensors import UserTensors

QUIET_STEPS = 20
"""What an observing policy would have done is told at most once in so many steps."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An action that waits for the boundary."""

    action: Action
    decision: Decision
    undo: bool = False


class Lender:
    """Called with a decision: what is lent to one of its actions for one call."""

    def __init__(
        self,
        context: WorkerContext,
        state: TrainingState,
        snapshots: SnapshotRing,
        healing: Healing,
        pre_treatment: PreTreatmentCheckpoint,
        *,
        begin_trial: Callable[[Callable[[], Snapshot | None]], str],
        tell_ranks: Callable[[int], list[int]],
    ) -> None:
        self._policy, self._controls, self._use = context.policy, context.controls, context.use
        self._schedule, self._health = context.schedule, context.health
        self._state = state
        self._snapshots = snapshots
        self._healing = healing
        self._pre_treatment = pre_treatment
        self._begin_trial = begin_trial
        self._tell_ranks = tell_ranks

    def __call__(self, decision: Decision) -> ActionContext:
        use, schedule = self._use, self._schedule
        return ActionContext(
            step=decision.step,
            policy=self._policy,
            decision=decision,
            controls=self._controls,
            registry=self._state.registry,
            state=self._state,
            snapshots=self._snapshots,
            recent_grad_norms=self._health.recent_grad_norms,
            keep_state=self._pre_treatment.keep,
            save_checkpoint=schedule.ask_for_checkpoint,
            request_restart=schedule.ask_for_restart,
            request_stop=schedule.ask_for_stop,
            pipeline_restore=self._healing.after_rollback,
            begin_trial=self._begin_trial,
            tell_ranks=self._tell_ranks,
            skip_batches=use.leave_out_batches if use.batches else None,
            script_clips=use.max_norm is not None,
            uses_batch_size=use.batch_size,
            uses_autocast=use.autocast,
        )


class ActionRunner:
    """From a decision to actions; owned by the worker, called in the training's own thread.

    Args:
        lent: gives what is lent to one action for one call.
        state_changed: called behind each action that is done at a boundary.

    Attributes:
        pending: actions that wait for the next boundary.
        changed_at: the last boundary at which the state itself was changed; -1 for none.
    """

    def __init__(
        self,
        context: WorkerContext,
        lent: Callable[[Decision], ActionContext],
        state_changed: Callable[[], None],
        agreement: Agreement,
        pipeline: Pipeline,
    ) -> None:
        self.pending: list[Pending] = []
        self.changed_at = -1
        self._actions = build_actions()
        self._lent = lent
        self._state_changed = state_changed
        self._schedule = context.schedule
        self.agreement = agreement
        self._pipeline = pipeline
        self._journal = context.group_journal
        self._warn = context.warn
        self._boundary_step = 0
        self._told_dry: dict[tuple[str, ...], int] = {}

    def start(self, decision: Decision) -> bool:
        """Starts all actions of a decision; returns whether one leaves the update out."""
        if decision.dry_run:
            self.tell_dry(decision)
            return False
        for name in decision.undo:
            self._dispatch(name, decision, undo=True)
        skips = False
        for name in decision.actions:
            skips = self._dispatch(name, decision, undo=False) or skips
        return skips

    def wait(self, name: str, decision: Decision) -> None:
        """Has the action `name` carried out at the next boundary."""
        self.pending.append(Pending(self._actions[name], decision))

    def run(self, name: str, decision: Decision) -> ActionResult:
        """Carries out what was ordered, not decided. Called at a boundary."""
        self._boundary_step = decision.step
        return self._run(self._actions[name], decision, undo=False)

    def run_untold(self, name: str, decision: Decision) -> None:
        """The same for what is part of the state that a resume puts back: no receipt."""
        carry_out(self._actions[name], self._lent(decision))
        self._state_changed()

    def run_pending(self, step: int) -> None:
        """Applies what waited for a whole state. Called at the boundary after `step` steps."""
        self._boundary_step = step
        while self.pending:
            waiting = self.pending.pop(0)
            self._run(waiting.action, waiting.decision, undo=waiting.undo)

    def tell_dry(self, decision: Decision) -> None:
        """Writes down what a policy that only observes would have done."""
        key = (*decision.actions, "/", *decision.undo)
        if decision.step - self._told_dry.get(key, -QUIET_STEPS) < QUIET_STEPS:
            return
        self._told_dry[key] = decision.step
        for name in decision.actions:
            self._journal.write(
                ActionEvent(
                    step=decision.step,
                    name=name,
                    rung=decision.rung,
                    cause=decision.cause,
                    cost_s=0.0,
                    outcome=ActionOutcome.WOULD_HAVE,
                    applied=False,
                    reason=decision.reason,
                    source=decision.source,
                    risk=decision.risk,
                    subject=decision.subject,
                )
            )

    def found_corruption(self, since_step: int) -> None:
        """What was done since this step is not what has helped: called before it is healed."""
        self._pipeline.found_corruption(since_step)

    def tell(self, result: ActionResult, decision: Decision) -> None:
        """Writes the receipt of an action that was done elsewhere."""
        self.changed_at = decision.step
        self._journal.write(_receipt(result, decision))

    def _dispatch(self, name: str, decision: Decision, *, undo: bool) -> bool:
        action = self._actions.get(name)
        if action is None:
            self._warn(f"policy: unknown action '{name}': left out")
            self._pipeline.settle(ActionResult(name=name, applied=False, detail="unknown"))
            return False
        if action.moment == "boundary":
            self.pending.append(Pending(action, decision, undo))
            self._schedule.ask()
            return False
        return self._run(action, decision, undo=undo).skips_update

    def _run(self, action: Action, decision: Decision, *, undo: bool) -> ActionResult:
        result = carry_out(action, self._lent(decision), undo=undo)
        self.agreement.decided(action.name, undo, result.applied, result.to_step)
        if action.moment == "boundary" and action.changes_state:
            self.changed_at = self._boundary_step
            self._state_changed()
        if undo:
            self._journal.write(
                ActionUndone(
                    step=decision.step,
                    name=action.name,
                    cause=decision.cause,
                    detail=result.detail,
                    reason=decision.reason,
                )
            )
            return result
        self._pipeline.settle(result)
        self._journal.write(_receipt(result, decision))
        if result.applied and result.to_step >= 0:
            self._journal.write(
                RollbackEvent(
                    step=decision.step,
                    from_step=decision.step,
                    to_step=result.to_step,
                    cause=decision.cause,
                    name=result.name,
                    before_step=self._boundary_step,
                )
            )
        return result


def _receipt(result: ActionResult, decision: Decision) -> ActionEvent:
    return ActionEvent(
        step=decision.step,
        name=result.name,
        rung=decision.rung,
        cause=decision.cause,
        cost_s=result.cost_s,
        outcome=ActionOutcome.APPLIED if result.applied else ActionOutcome.REFUSED,
        applied=result.applied,
        detail=result.detail,
        reason=decision.reason,
        source=decision.source,
        risk=decision.risk,
        fields=plain(result.fields),
        subject=decision.subject,
    )


class Healing:
    """The rest of a rollback and of a skipped update: what lies beside the weights.

    Called by the training's own thread, on every rank.
    """

    def __init__(
        self, context: WorkerContext, pipeline: Pipeline, snapshots: SnapshotRing, held: UserTensors
    ) -> None:
        self._pipeline = pipeline
        self._registry = context.registry
        self._snapshots = snapshots
        self._held = held
        self._warn = context.warn

    def after_rollback(self, extras: Mapping[str, Any]) -> None:
        """Our own windows go back, and what the user's variables hold.

        Args:
            extras: of the snapshot that was restored, with ``held`` of its state.
        """
        self._pipeline.rolled_back(int(extras["pipeline_step"]))
        self._held.put_back_lasting(extras.get("held", {}), extras.get("held_look"))
        healed = self._held.heal(user_frames())
        if healed:
            self._warn(f"variables that were not finite were zeroed: {', '.join(healed)}")

    def after_skip(self) -> None:
        """An update was left out; its forward may have brought NaN into running statistics."""
        snapshot = self._snapshots.newest()
        if snapshot is None:
            return
        for name, model in self._registry.models.items():
            healed = heal_buffers(model, snapshot.state["models"].get(name, {}))
            if healed:
                self._warn(
                    f"buffers that were not finite are those of step {snapshot.step} again: "
                    f"{', '.join(healed[:8])}"
                )


OUT_OF_MEMORY = "ordered after memory ran out"


class OrderedTreatments(Part):
    """Carries them out where the attempt begins, and writes the same receipts as the ladder's."""

    name = "ordered treatments"

    def __init__(self, context: WorkerContext, runner: ActionRunner, pipeline: Pipeline) -> None:
        self._order = context.order
        self._pipeline = pipeline
        self._controls = context.controls
        self._registry = context.registry
        self._runner = runner
        self._breakers = context.breakers

    def from_nothing(self) -> None:
        """No checkpoint: models are met at their first forward only, which is a boundary."""
        self.be_careful()
        if self._order.fp32:
            self._wait(
                "fp32_fallback", Cause.NONFINITE, "ordered after repeated numerical failures"
            )
        if self._order.checkpoint_activations:
            self._wait("checkpoint_activations", Cause.RESOURCES, OUT_OF_MEMORY)

    def be_careful(self) -> None:
        """Takes on the order's conservative settings: the rate, and the batch size after memory
        ran out; or leaves the training alone.

        Called at the checkpoint's step, or before the first one of a start from nothing.
        """
        order, controls = self._order, self._controls
        if order.resigned:
            self._pipeline.resign()
        if order.lr_factor != 1.0 and order.careful_steps:
            controls.lr_factor = order.lr_factor
            controls.ramp = Ramp(order.lr_factor, 1.0, order.careful_steps)
        controls.fp32 = controls.fp32 or order.fp32
        controls.batch_factor = min(controls.batch_factor, order.batch_factor)

    def save(self, point: SavePoint) -> None:
        point.note({"controls": self._controls.state_dict()})

    def after_state(self, arrived: Arrived) -> list[str]:
        self._controls.load_state_dict(arrived.meta["controls"])
        was_on = self._controls.checkpoint_activations
        self._activation_checkpointing(arrived.step, was_on=was_on)
        return []

    def goes_live(self, arrived: Arrived) -> None:
        self.be_careful()

    def fp32(self, step: int) -> None:
        """Switches the FP32 fallback on, at a boundary."""
        decision = Decision(step=step, actions=("fp32_fallback",))
        self._runner.run_untold("fp32_fallback", decision)

    def _activation_checkpointing(self, step: int, *, was_on: bool) -> None:
        """Switches it on at a resume's boundary, behind the state that was put back.

        Args:
            was_on: in the attempt that the checkpoint is of: no treatment, then, but a part of its
                state. The model's flags may have come with it, what they stand for has not.
        """
        if was_on:
            with self._breakers("activation checkpointing"):
                for model in self._registry.models.values():
                    ActivationCheckpointing(model).switch_on()
        elif self._order.checkpoint_activations:
            name = "checkpoint_activations"
            self._runner.run(name, _decision(name, step, Cause.RESOURCES, OUT_OF_MEMORY))

    def _wait(self, name: str, cause: Cause, reason: str) -> None:
        self._runner.wait(name, _decision(name, 0, cause, reason))


def _decision(name: str, step: int, cause: Cause, reason: str) -> Decision:
    by_parent = DecisionSource.ORDER
    return Decision(step=step, actions=(name,), cause=cause, reason=reason, source=by_parent)
