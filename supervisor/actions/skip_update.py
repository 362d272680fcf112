"""Leaves one update out."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult


class SkipUpdate(Action):
    """The judged gradient does not reach the weights; weights and optimizer state stay as they are.

    The worker hides the gradients (`guard.hide_gradients`) and clears the control afterwards.
    """

    name = "skip_update"
    moment = "update"
    cost = "one batch"

    def apply(self, context: ActionContext) -> ActionResult:
        context.controls.skip_update = True
        return self.done(f"the update of step {context.step} is left out")

    def undo(self, context: ActionContext) -> ActionResult:
        context.controls.skip_update = False
        return self.done("updates are applied")
