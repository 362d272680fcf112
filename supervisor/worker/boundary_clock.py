"""When a step is over: its optimizers have all stepped, and the next forward begins."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch.optim import Optimizer

TAKES_OVER_AFTER = 128
"""More than any usual game lets one side step alone: a WGAN's critic makes 100 updates for each of
its generator's first 25 (Arjovsky et al. 2017, their published code)."""


class BoundaryClock:
    """Counts updates of the lead optimizer and waits for those that follow it.

    The lead is the optimizer that steps first. When another one has made `TAKES_OVER_AFTER` updates
    in a row since the lead's last, another training has begun (the next fold, the fine-tuning after
    the pretraining), and that one leads from then on. Nothing but the order of updates decides, so
    that a replay counts the same steps. The lead is held weakly, because what it trained would fill
    the device's memory when the script has dropped it and trains the next model.

    Others that stepped between the lead's last two updates (a GAN's second half) are expected to do
    so again before the step counts as over: between the two, gradients may still have to flow
    through what was computed before. What follows the very first update is not known yet, so no
    boundary comes before the second.

    A script that calls no module (weights as bare tensors, probabilistic programs) has no forward
    that could be seen. Until its first one, the boundary is right behind the updates.

    Attributes:
        lead: called, returns the lead; None until an optimizer has stepped, and when it is gone.
        is_due: the next outermost forward is a boundary.
        has_forwards: an outermost forward was seen.
        by_others: updates of other optimizers since the lead's last one.
        is_alone: no other one has stepped since the lead's last update but one: all that `updated`
            does for the lead's next update is to make the boundary due.
    """

    def __init__(self) -> None:
        self.lead: Callable[[], Optimizer | None] = _nobody
        self.is_due = True
        self.has_forwards = False
        self._updates = 0
        self.by_others = 0
        self.is_alone = False
        self._seen: set[int] = set()
        self._awaited: set[int] = set()
        self._last_other: Callable[[], Optimizer | None] = _nobody
        self._in_a_row = 0

    def is_lead(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` is the lead; without one, it becomes it. Asked before its update."""
        if optimizer is self.lead():
            return True
        if self.lead is not _nobody:
            return False
        self.lead = weakref.ref(optimizer)
        return True

    def updated(self, optimizer: Optimizer) -> bool:
        """Takes note of an update, right after it (or after the scaler left it out).

        Returns:
            Whether `optimizer` has just become the lead of another training, with its next update.
        """
        if optimizer is not self.lead():
            self.by_others += 1
            self.is_alone = False
            self._seen.add(id(optimizer))
            self._awaited.discard(id(optimizer))
            self.is_due = self._updates > 1 and not self._awaited
            return self._takes_over(optimizer)
        self._updates += 1
        self.no_forward_between()
        self.by_others = 0
        if self._seen or self._awaited:
            self._awaited, self._seen = self._seen, set()
        self._in_a_row = 0
        self.is_due = self._updates > 1 and not self._awaited
        self.is_alone = self.is_due
        return False

    def _takes_over(self, other: Optimizer) -> bool:
        if other is not self._last_other():
            self._last_other = weakref.ref(other)
            self._in_a_row = 0
        self._in_a_row += 1
        if self._in_a_row < TAKES_OVER_AFTER:
            return False
        self.lead, self._last_other = self._last_other, _nobody
        self._in_a_row = self.by_others = 0
        self._awaited, self._seen = set(), set()
        return True

    def no_forward_between(self) -> None:
        """Called at each update of the lead: if the last boundary had no forward that could be seen
        (all are compiled, or transformed by torch.func), they come behind the updates again."""
        if self.is_due:
            self.has_forwards = False

    def passed(self) -> None:
        """An outermost forward has begun, and was the boundary if one was due."""
        self.is_due = False
        self.has_forwards = True


def _nobody() -> None:
    return None
