"""Ends the run before it wastes more time."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult


class Stop(Action):
    """The emergency stop: the run gives up, with a report of why; its checkpoints stay."""

    name = "stop"
    moment = "boundary"
    changes_state = False
    abandons_state = True
    cost = "the run"

    def apply(self, context: ActionContext) -> ActionResult:
        reason = context.decision.reason or context.decision.cause.value
        context.request_stop(reason)
        return self.done(f"the run stops: {reason}")
