"""Clips gradients at a threshold that follows them."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.controls import AdaptiveThreshold
from supervisor.records import ActionResult


class AdaptiveClip(Action):
    """Clips at the 99.5th percentile of the last 1,000 norms, never below 1 or above 100.

    For the first 100 norms the threshold is fixed; see `AdaptiveThreshold`.
    """

    name = "adaptive_clip"
    moment = "update"
    cost = "one step in 200 is shortened"

    def precondition(self, context: ActionContext) -> str | None:
        return None if context.controls.adaptive is None else "it is already switched on"

    def apply(self, context: ActionContext) -> ActionResult:
        threshold = AdaptiveThreshold()
        for norm in context.recent_grad_norms:
            threshold.update(norm)
        context.controls.adaptive = threshold
        return self.done(f"gradients are clipped adaptively, now at {threshold.value:.4g}")

    def undo(self, context: ActionContext) -> ActionResult:
        context.controls.adaptive = None
        return self.done("gradients are no longer clipped adaptively")
