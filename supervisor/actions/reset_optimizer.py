"""Forgets what the optimizers remember."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult


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
