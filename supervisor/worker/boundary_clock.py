"""When a step is over: its optimizers have all stepped, and the next forward begins."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch.optim import Optimizer


class BoundaryClock:
    """Counts updates of the lead optimizer and waits for those that follow it.

    The lead is the optimizer that steps first, for the whole run: a replay must count the same
    steps. It is held weakly, because what it trained would fill the device's memory when the script
    has dropped it and trains the next model.

    Others that stepped between the lead's last two updates (a GAN's second half) are expected to do
    so again before the step counts as over: between the two, gradients may still have to flow
    through what was computed before. What follows the very first update is not known yet, so no
    boundary comes before the second.

    Attributes:
        lead: called, returns the lead; None until an optimizer has stepped, and when it is gone.
        is_due: the next outermost forward is a boundary.
        by_others: updates of other optimizers since the lead's last one.
    """

    def __init__(self) -> None:
        self.lead: Callable[[], Optimizer | None] = _nobody
        self.is_due = True
        self._updates = 0
        self.by_others = 0
        self._seen: set[int] = set()
        self._awaited: set[int] = set()

    def is_lead(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` is the lead; without one, it becomes it. Asked before its update."""
        if optimizer is self.lead():
            return True
        if self.lead is not _nobody:
            return False
        self.lead = weakref.ref(optimizer)
        return True

    def updated(self, optimizer: Optimizer) -> None:
        """Takes note of an update, right after it (or after the scaler left it out)."""
        if optimizer is not self.lead():
            self.by_others += 1
            self._seen.add(id(optimizer))
            self._awaited.discard(id(optimizer))
            self.is_due = self._updates > 1 and not self._awaited
            return
        self._updates += 1
        self.by_others = 0
        self._awaited, self._seen = self._seen, set()
        self.is_due = self._updates > 1 and not self._awaited

    def passed(self) -> None:
        """The boundary was used."""
        self.is_due = False


def _nobody() -> None:
    return None
