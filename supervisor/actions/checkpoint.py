"""Saves a checkpoint earlier than the schedule would."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult


class SaveCheckpoint(Action):
    """Saves the state while it is still good, or as it is at the scene of a crash."""

    name = "checkpoint"
    moment = "boundary"
    changes_state = False
    cost = "one copy of the state in memory"

    def apply(self, context: ActionContext) -> ActionResult:
        reason = context.decision.reason or context.decision.cause.value
        if context.save_checkpoint(reason):
            return self.done(f"saved at step {context.step}: {reason}")
        return ActionResult(name=self.name, applied=False, detail="no checkpoint could be saved")
