"""What is done to optimizers: their rates, and what they remember."""

from __future__ import annotations

import math

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


class ResetOptimizer(Action):
    """Clears the state of every optimizer: momenta and step counts begin anew."""

    name = "reset_optimizer"
    moment = "boundary"
    abandons_state = True
    cost = "the optimizer warms up again"

    def precondition(self, context: ActionContext) -> str | None:
        if not any(optimizer.state for optimizer in context.registry.optimizers.values()):
            return "no optimizer has a state"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        cleared = []
        for name, optimizer in context.registry.optimizers.items():
            if optimizer.state:
                optimizer.state.clear()
                cleared.append(name)
        return self.done(f"state cleared: {', '.join(cleared)}")
