"""Ends this process so that a new one begins from the last stable checkpoint."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult


class Restart(Action):
    """Asks for a new attempt, with conservative settings for its first steps."""

    name = "restart"
    moment = "boundary"
    changes_state = False
    abandons_state = True
    cost = "a process start, and the steps since the checkpoint"

    def apply(self, context: ActionContext) -> ActionResult:
        reason = context.decision.reason or context.decision.cause.value
        context.request_restart(reason)
        return self.done(f"a new attempt was asked for: {reason}")
