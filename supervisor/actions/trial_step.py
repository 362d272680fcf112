"""Has the next step made with older weights, to see whether the weights are to blame."""

from __future__ import annotations

from supervisor.actions.base import Action, ActionContext
from supervisor.actions.rollback import before_onset
from supervisor.records import ActionResult


class TrialStep(Action):
    """The forwards of the next step are computed with the weights of the newest snapshot from
    before the onset; its update is left out, and the state is the present one again.

    What its loss says is in `supervisor.ladder.trial_steps`.
    """

    name = "trial_step"
    moment = "boundary"
    changes_state = False
    cost = "one batch"

    def apply(self, context: ActionContext) -> ActionResult:
        snapshot = before_onset(context)
        if snapshot is None:
            refusal = "there is no snapshot from before the onset"
        else:
            refusal = context.begin_trial(snapshot)
        if snapshot is None or refusal:
            return ActionResult(name=self.name, applied=False, detail=refusal)
        detail = f"the next step is tried with the weights of step {snapshot.step}"
        return self.done(detail, trial_of=snapshot.step)
