"""Lowers the learning rate for a while."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.controls import Ramp
from supervisor.records import ActionResult


class CutLr(Action):
    """Multiplies the learning-rate factor; the script's schedule and its logs never see it."""

    name = "cut_lr"
    moment = "update"
    cost = "slower progress until it is taken back"

    def precondition(self, context: ActionContext) -> str | None:
        if context.controls.lr_factor <= context.policy.lr_factor_min:
            return f"the factor is at its minimum of {context.policy.lr_factor_min:g} already"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        controls, policy = context.controls, context.policy
        before = controls.lr_factor
        controls.ramp = None
        controls.lr_factor = max(before * policy.lr_factor, policy.lr_factor_min)
        return self.done(
            f"learning-rate factor {before:g} → {controls.lr_factor:g}",
            lr_factor=controls.lr_factor,
        )

    def undo(self, context: ActionContext) -> ActionResult:
        """Brings the factor back to 1 in a straight line over `lr_rewarm_steps`."""
        controls, steps = context.controls, context.policy.lr_rewarm_steps
        if controls.lr_factor == 1.0 or steps <= 0:
            controls.lr_factor, controls.ramp = 1.0, None
            return self.done("learning-rate factor 1")
        controls.ramp = Ramp(controls.lr_factor, 1.0, steps)
        return self.done(f"learning-rate factor {controls.lr_factor:g} → 1 over {steps} steps")
