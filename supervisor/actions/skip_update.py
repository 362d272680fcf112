"""Leaves one update out."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult


class SkipUpdate(Action):
    """The judged gradient does not reach the weights; weights and optimizer state stay as they are.

    The worker hides the gradients from the optimizer (`controls.hide_gradients`).
    """

    name = "skip_update"
    moment = "update"
    cost = "one batch"

    def apply(self, context: ActionContext) -> ActionResult:
        detail = f"the update of step {context.step} is left out"
        return ActionResult(name=self.name, applied=True, detail=detail, skips_update=True)
