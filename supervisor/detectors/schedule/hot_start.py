"""A learning rate so high that the first updates have ended the training before it began."""

from __future__ import annotations

import math
from collections import deque

from supervisor.codes import Subject
from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.robust_window import is_leap
from supervisor.records import Alert, Cause, Severity, StepRecord

LOOK = 40
"""Steps over which the loss and the norm are compared with the first ones."""

EVERY = 10
EARLY = 5


class HotStartDetector(Detector):
    """The loss of a young run stands where it began, and its gradient norm says why.

    Two courses are told, both of runs whose rate is 10 to 100 times too high:

    * The norm rose to `times` its first value, and is now less than half of that value: the first
      updates have thrown the weights to where nothing is learned (dead ReLUs, saturated gates).
    * The loss lies above the first one, and the norm at `times` its first value: the updates are
      too long for any of them to help.

    A loss stands if three quarters of the last `LOOK` values are above `standing` x the first one,
    and where the quartiles lie a leap apart, a leap above the first `EARLY` values: one loss of a
    single sample says nothing. A healthy run stands like that only while its norm hardly changes
    (warm-up, a slow first plateau).
    Adversarial losses, environments and losses that are not positive are not judged.

    Args:
        first_look: steps until the first judgement.
        last_look: steps after which the start is over.
        standing: share of the first loss.
        times: of the first norm.
    """

    name = "hot_start"
    _state = (
        "_losses",
        "_norms",
        "_first_loss",
        "_first_norm",
        "_highest",
        "_early_high",
        "_update",
        "_seen",
    )

    def __init__(
        self,
        *,
        first_look: int = 60,
        last_look: int = 150,
        standing: float = 0.97,
        times: float = 3.0,
    ) -> None:
        self.first_look = first_look
        self.last_look = last_look
        self.standing = standing
        self.times = times
        self._begin()

    def _begin(self) -> None:
        self._losses: deque[float] = deque(maxlen=LOOK)
        self._norms: deque[float] = deque(maxlen=LOOK)
        self._first_loss = math.nan
        self._first_norm = math.nan
        self._highest = 0.0
        self._early_high = 0.0
        self._update = 0.0
        self._seen = 0

    def forget_levels(self) -> None:
        """Other data: the first steps are no yardstick any more."""
        self._end()

    def _end(self) -> None:
        self.score = 0.0
        self._seen = self.last_look + 1
        self._losses.clear()
        self._norms.clear()

    def update(self, record: StepRecord) -> Alert | None:
        self.score = 0.0
        if self._seen > self.last_look:
            return None
        if record.has_moving_objective:
            self._end()
            return None
        self._update = max(self._update, record.observed.get("update_ratio", 0.0))
        seen = record.loss_seen and record.grad_norm_seen
        if not seen or not math.isfinite(record.loss) or not math.isfinite(record.grad_norm):
            return None
        if not self._seen:
            self._first_loss, self._first_norm = record.loss, record.grad_norm
        if record.loss <= 0.0 or self._first_norm <= 0.0:
            self._end()
            return None
        self._seen += 1
        if self._seen <= EARLY:
            self._early_high = max(self._early_high, record.loss)
        self._losses.append(record.loss)
        self._norms.append(record.grad_norm)
        self._highest = max(self._highest, record.grad_norm)
        if self._seen < self.first_look or self._seen % EVERY:
            return None
        return self._look(record)

    def _look(self, record: StepRecord) -> Alert | None:
        losses, norms = sorted(self._losses), sorted(self._norms)
        quarter, middle = len(losses) // 4, len(losses) // 2
        low, high = losses[quarter], losses[-quarter]
        if low < self.standing * self._first_loss:
            return None
        if is_leap(high, low) and not is_leap(low, self._early_high):
            return None
        loss, norm = losses[middle], norms[middle] / self._first_norm
        rose = self._highest / self._first_norm
        if rose >= self.times and norm <= 0.5:
            fact = f"rose to {rose:.3g} times its first value and has fallen to {norm:.2g} of it"
        elif norm >= self.times and loss >= self._first_loss:
            fact = f"has grown to {norm:.3g} times its first value"
        else:
            return None
        first, seen, update = self._first_loss, self._seen, self._update
        self._end()
        self.score = 1.0
        moved = f"; an update changed a layer by {update:.0%} of its weight" if update else ""
        return self.alert(
            record,
            severity=Severity.HIGH,
            category="learning_rate",
            kind="rate_too_high_from_start",
            cause=Cause.LEARNING_RATE,
            message=f"the loss is {loss:.4g} after {seen} steps, as at first ({first:.4g}), and "
            f"the gradient norm {fact}{moved}",
            advice="the learning rate is probably 10 to 100 times too high",
            subject=Subject.LOSS,
            value=loss,
            threshold=self.standing * first,
            metadata={"norm_rose": rose, "norm": norm, "update_ratio": update},
        )
