"""Smaller batches, and batches that are left out."""

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


MOST_BATCHES = 200


class SkipData(Action):
    """Drops as many batches as the trouble has lasted steps, at most 200.

    Useful after a rollback of a script whose data was rewound too: the batches on which it went
    wrong do not come again.
    """

    name = "skip_data"
    moment = "boundary"
    changes_state = False
    cost = "the batches left out"

    def precondition(self, context: ActionContext) -> str | None:
        if context.skip_batches is None:
            return "the script does not read its data through supervisor.batches"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        if context.skip_batches is None:
            return ActionResult(name=self.name, applied=False, detail="no data to skip")
        onset = context.decision.onset_step
        lasted = context.step - onset + 1 if onset >= 0 else 1
        count = min(max(1, lasted), MOST_BATCHES)
        context.skip_batches(count)
        return self.done(f"the next {count} batches are left out", batches=count)
