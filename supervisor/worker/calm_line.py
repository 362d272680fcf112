"""Which steps are so calm that their judgement may wait for the next few."""

from __future__ import annotations

import math
from collections import deque

from supervisor.records import StepRecord

RECENT = 64
GIVE_AT = 8
MAX_WAITING = 32
"""Eight waiting steps are given to another thread at the next backward (`background_look`); where
none comes, 32 are judged at once, because code that judges is pushed out of the processor's caches
by every step of the training. What may wait so long is only what no detector of sudden trouble
could see: slow ones look at blocks of 50 steps and more."""


class CalmLine:
    """Calm is a step whose loss and gradient norm stay below what the last steps reached.

    A value that does not exceed the highest of the `RECENT` last ones cannot be a leap. After an
    alarm nothing counts as calm until so many steps were judged one by one.
    """

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._norms: deque[float] = deque(maxlen=RECENT)
        self._highest_loss = -math.inf
        self._highest_norm = -math.inf
        self._is_stale = False
        self._last: StepRecord | None = None

    def is_calm(self, record: StepRecord) -> bool:
        """Whether the judgement of this step may wait. NaN compares false, so it never may."""
        last = self._last
        if self._is_stale:
            self._is_stale = False
            self._highest_loss = max(self._losses, default=-math.inf)
            self._highest_norm = max(self._norms, default=-math.inf)
        return (
            last is not None
            and len(self._losses) == RECENT
            and record.loss <= self._highest_loss
            and (record.grad_norm <= self._highest_norm or not record.grad_norm_seen)
            and (not record.observed or all(map(math.isfinite, record.observed.values())))
            and not record.scaler_skipped
            and record.batch_size == last.batch_size
            and (record.loss_scale == last.loss_scale or math.isnan(last.loss_scale))
        )

    def judged(self, record: StepRecord, *, quiet: bool) -> None:
        """Takes in a step that was judged; `quiet` if nothing was thought of it."""
        self._last = record
        self._is_stale = True
        if not quiet or not math.isfinite(record.loss):
            self._losses.clear()
            self._norms.clear()
            return
        self._losses.append(record.loss)
        self._norms.append(record.grad_norm)
