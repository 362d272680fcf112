"""Actions that only ask the worker: save, leave an update out, restart, stop."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult


class SaveCheckpoint(Action):
    """Saves the state while it is still good, or as it is at the scene of a crash."""

    name = "checkpoint"
    moment = "boundary"
    changes_state = False
    cost = "one copy of the state in memory"

    def apply(self, context: ActionContext) -> ActionResult:
        reason = context.decision.reason or context.decision.cause.value
        if context.save_checkpoint(reason):
            return self.done(f"saved at step {context.step}: {reason}")
        return ActionResult(name=self.name, applied=False, detail="no checkpoint could be saved")


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
