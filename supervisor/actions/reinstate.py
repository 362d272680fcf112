"""Puts the newer weights back that a rollback threw away for nothing."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.rollback import belongs_to_the_weights, zero_gradients
from supervisor.records import ActionResult
from supervisor.training_state.state import ROLLBACK_PARTS


class Reinstate(Action):
    """Takes a rollback back, when its comparison has found that no weights were to blame.

    Models, optimizers, scalers and tracked objects are read from the checkpoint that was made
    before the rollback. As with a rollback, scheduler, counters, random numbers and data stay with
    the script's loop, so what is lost is the few steps since the rollback instead of those before.
    """

    name = "reinstate"
    moment = "boundary"
    cost = "reading a checkpoint, and the steps since the rollback"

    def precondition(self, context: ActionContext) -> str | None:
        if context.thrown_away() is None:
            return "no rollback of this process has thrown a finite state away"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        kept = context.thrown_away()
        if kept is None:
            return ActionResult(name=self.name, applied=False, detail="nothing was thrown away")
        saved = kept.read()
        context.state.restore(saved, ROLLBACK_PARTS)
        with belongs_to_the_weights():
            zero_gradients(context)
            context.put_back_held(saved.get("held", {}))
        return self.done(
            f"weights and optimizer are again those that the rollback after {kept.step} steps "
            "threw away",
            from_step=context.step,
            kept_step=kept.step,
        )
