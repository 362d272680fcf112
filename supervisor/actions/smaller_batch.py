"""Asks the script for smaller batches."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.records import ActionResult

SMALLEST = 1 / 16


class SmallerBatch(Action):
    """Halves what `supervisor.batch_size` returns, down to a sixteenth; against lack of memory."""

    name = "smaller_batch"
    moment = "boundary"
    changes_state = False
    cost = "more steps for the same data, noisier gradients"

    def precondition(self, context: ActionContext) -> str | None:
        if not context.uses_batch_size:
            return "the script does not ask supervisor.batch_size"
        if context.controls.batch_factor <= SMALLEST:
            return f"the batch is at {SMALLEST:g} of its size already"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        context.controls.batch_factor = max(context.controls.batch_factor / 2, SMALLEST)
        return self.done(f"batch size x {context.controls.batch_factor:g}")

    def undo(self, context: ActionContext) -> ActionResult:
        context.controls.batch_factor = 1.0
        return self.done("the script's own batch size again")
