"""Goes back to the weights of some steps ago, or asks what they would give."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from supervisor.actions.base import Action, ActionContext
from supervisor.errors import StateTorn
from supervisor.records import ActionResult
from supervisor.training_state.snapshot import Snapshot
from supervisor.training_state.state import ROLLBACK_PARTS, is_finite
from supervisor.training_state.tensors import outside_autograd


class Rollback(Action):
    """Restores models, optimizers, scalers and tracked objects from a snapshot before the onset.

    Scheduler, counters, random numbers and data stay with the script's loop: it sees other data
    than the first time, which is how large-model teams survive loss spikes (PaLM, section 5.1: go
    back about 100 steps and leave the bad batches out). The newest finite snapshot from
    `rollback_margin_steps` before the onset is taken, or, if there is none so old, the oldest.
    """

    name = "rollback"
    moment = "boundary"
    abandons_state = True
    cost = "the steps since the snapshot"

    def precondition(self, context: ActionContext) -> str | None:
        if way_back(context) is not None:
            return None
        if context.snapshots.newest() is None:
            return "there is no snapshot to go back to, and no checkpoint"
        return "every snapshot holds NaN or infinite weights"

    def apply(self, context: ActionContext) -> ActionResult:
        snapshot = way_back(context)
        if snapshot is None:
            return ActionResult(name=self.name, applied=False, detail="no snapshot is usable")
        context.state.restore(snapshot.state, ROLLBACK_PARTS)
        with belongs_to_the_weights():
            zero_gradients(context)
            context.snapshots.drop_after(snapshot.step)
            context.pipeline_restore({**snapshot.extras, "held": snapshot.state.get("held", {})})
        return ActionResult(
            name=self.name,
            applied=True,
            detail=f"weights and optimizer are those of step {snapshot.step} again",
            to_step=snapshot.step,
            fields={"from_step": context.step, "to_step": snapshot.step},
        )


class TrialStep(Action):
    """The next step is computed a second time with the weights of the newest snapshot from before
    the onset, up to its loss.

    What that loss says is in `supervisor.ladder.trial_steps`.
    """

    name = "trial_step"
    moment = "boundary"
    changes_state = False
    cost = "one more forward"

    def apply(self, context: ActionContext) -> ActionResult:
        refusal = context.begin_trial(functools.partial(before_onset, context))
        if refusal:
            return ActionResult(name=self.name, applied=False, detail=refusal)
        return self.done("the next step is computed with the weights of before the onset, too")


def way_back(context: ActionContext) -> Snapshot | None:
    """Returns the newest finite snapshot from before the onset, or the next best; None without."""
    ring = context.snapshots
    next_best = ring.oldest() or ring.on_disk(context.step + 1)
    return before_onset(context) or _finite(context, next_best)


def before_onset(context: ActionContext) -> Snapshot | None:
    """The newest finite snapshot from before the onset; None if there is none.

    Where memory holds none so old, the newest such checkpoint serves.
    """
    onset = context.decision.onset_step
    target = (onset if onset >= 0 else context.step) - context.policy.rollback_margin_steps
    ring = context.snapshots
    return _finite(context, ring.before(target + 1) or ring.on_disk(target + 1))


def _finite(context: ActionContext, chosen: Snapshot | None) -> Snapshot | None:
    """`chosen`, or the newest one before it that holds no NaN and no infinity on any rank: one may
    have them in its shard alone."""
    while True:
        while chosen is not None and not _is_finite(chosen):
            chosen = _older(context, chosen.step)
        told = context.tell_ranks(-1 if chosen is None else chosen.step)
        if min(told) == max(told) or min(told) < 0:
            return chosen if min(told) >= 0 else None
        if chosen is not None and chosen.step > min(told):
            chosen = _older(context, min(told) + 1)


def _older(context: ActionContext, step: int) -> Snapshot | None:
    return context.snapshots.before(step) or context.snapshots.on_disk(step)


def _is_finite(snapshot: Snapshot) -> bool:
    try:
        return is_finite(snapshot.state)[0]
    except Exception:  # the other ranks wait for an answer
        return False


@contextlib.contextmanager
def belongs_to_the_weights() -> Iterator[None]:
    """What follows a restored state, without which the run is no more whole than within it.

    Raises:
        StateTorn: it failed.
    """
    try:
        yield
    except Exception as error:
        raise StateTorn(f"behind the weights: {type(error).__name__}: {error}") from error


def zero_gradients(context: ActionContext) -> None:
    """Gradients of the sick weights must not be added to; the tensors stay where they are."""
    for optimizer in context.registry.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if gradient.grad_fn is not None and not gradient._is_view():
                    gradient.detach_()
                with outside_autograd():
                    gradient.zero_()
