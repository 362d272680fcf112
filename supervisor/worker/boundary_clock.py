"""When a step is over: its optimizers have all stepped, and the next forward begins."""

from __future__ import annotations

from torch.optim import Optimizer


class BoundaryClock:
    """Counts updates of the lead optimizer and waits for those that follow it.

    The lead is the optimizer that steps first. Others that stepped between its last two updates
    (a GAN's second half) are expected to do so again before the step counts as over: between the
    two, gradients may still have to flow through what was computed before. What follows the very
    first update is not known yet, so no boundary comes before the second.

    Attributes:
        lead: None until an optimizer has stepped.
        is_due: the next outermost forward is a boundary.
    """

    def __init__(self) -> None:
        self.lead: Optimizer | None = None
        self.is_due = True
        self._updates = 0
        self._seen: set[int] = set()
        self._awaited: set[int] = set()

    def is_lead(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` is the lead; the first one asked about becomes it."""
        if self.lead is None:
            self.lead = optimizer
        return optimizer is self.lead

    def updated(self, optimizer: Optimizer) -> None:
        """Takes note of an update, right after it (or after the scaler left it out)."""
        if optimizer is not self.lead and not self.is_lead(optimizer):
            self._seen.add(id(optimizer))
            self._awaited.discard(id(optimizer))
            self.is_due = self._updates > 1 and not self._awaited
            return
        self._updates += 1
        self._awaited, self._seen = self._seen, set()
        self.is_due = self._updates > 1 and not self._awaited

    def passed(self) -> None:
        """The boundary was used."""
        self.is_due = False
