"""Carries out actions, at once or at the next boundary, and writes their receipts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from supervisor.actions.base import Action, ActionContext, carry_out
from supervisor.codes import ActionOutcome
from supervisor.events.step_events import ActionEvent, ActionUndone, RollbackEvent
from supervisor.pipeline import Pipeline
from supervisor.records import ActionResult, Decision, plain
from supervisor.storage.journal.journal import Journal
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.group.agreement import Agreement

QUIET_STEPS = 20
"""What an observing policy would have done is told at most once in so many steps."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An action that waits for the boundary."""

    action: Action
    decision: Decision
    undo: bool = False


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
        actions: Mapping[str, Action],
        lent: Callable[[Decision], ActionContext],
        *,
        state_changed: Callable[[], None],
        schedule: BoundarySchedule,
        agreement: Agreement,
        pipeline: Pipeline,
        journal: Journal,
        warn: RunWarnings,
    ) -> None:
        self.pending: list[Pending] = []
        self.changed_at = -1
        self._actions = actions
        self._lent = lent
        self._state_changed = state_changed
        self._schedule = schedule
        self.agreement = agreement
        self._pipeline = pipeline
        self._journal = journal
        self._warn = warn
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
