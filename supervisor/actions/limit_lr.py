"""Holds the learning rate at what it was before it leapt."""

from __future__ import annotations

import math

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult


class LimitLr(Action):
    """Allows the main optimizer no rate above `Decision.lr_limit`; the others follow in proportion.

    Undoes the leap by its own factor, whatever that is, and does nothing once the script's rate is
    below the limit by itself. A factor of one's own, as of `cut_lr`, would be too little or too
    much.
    """

    name = "limit_lr"
    moment = "update"
    cost = "the script's higher rate is not used"

    def precondition(self, context: ActionContext) -> str | None:
        if not math.isfinite(context.decision.lr_limit):
            return "the learning rate has not leapt"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        limit = context.decision.lr_limit
        context.controls.lr_limit = limit
        return self.done(f"the learning rate is held at {limit:.4g}", lr_limit=limit)

    def undo(self, context: ActionContext) -> ActionResult:
        context.controls.lr_limit = None
        return self.done("the learning rate is the script's own again")
