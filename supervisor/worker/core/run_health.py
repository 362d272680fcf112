"""What judging has found out of the run so far.

Which steps are so calm that their judgement may wait for the next few.
"""

from __future__ import annotations

import math
from collections import deque

from supervisor.records import StepRecord
from supervisor.risk_lines import RiskLines

TROUBLE_STEPS = 20
"""After an alarm the state counts as doubtful for the predictor's horizon."""

RECENT_NORMS = 1000
"""Enough for the quantiles that clipping asks for."""


class RunHealth:
    """Written where steps are judged; read where states are kept and treatments chosen.

    Attributes:
        risk: of the step judged last.
        last_trouble_step: the last step with an alarm or a treatment that goes back; -1 for none.
        bad_losses: how many of the last steps in a row had an update by a loss that is not finite.
        recent_grad_norms: of the last steps, before our clipping, oldest first; finite ones only.
    """

    def __init__(self, lines: RiskLines) -> None:
        self.risk = 0.0
        self.last_trouble_step = -1
        self.bad_losses = 0
        self.recent_grad_norms: deque[float] = deque(maxlen=RECENT_NORMS)
        self._lines = lines

    @property
    def is_warning(self) -> bool:
        return self._lines.is_warning(self.risk)

    @property
    def is_alarm(self) -> bool:
        return self._lines.is_alarm(self.risk)

    def in_trouble(self, step: int) -> bool:
        """Whether the state of this step may be sick: an alarm is on, or was a moment ago."""
        return self.last_trouble_step >= 0 and step - self.last_trouble_step <= TROUBLE_STEPS


RECENT = 64
MAX_WAITING = 32
"""Steps that are judged at once, because code that judges is pushed out of the processor's caches
by every step of the training. What may wait so long is only what no detector of sudden trouble
could see: slow ones look at blocks of 50 steps and more."""

MARGIN = 0.1
"""Of the range of the recent values, above the highest. 64 normal values reach 2.4 standard
deviations to each side, so the line is at 2.9 of them, while a leap begins at 4.5; of steady values
every 200th is beyond it instead of every 65th."""


class Deferral:
    """Calm is a step whose loss and gradient norm stay below what the last steps reached.

    A value hardly above the highest of the `RECENT` last ones cannot be a leap. A step that a
    detector had something to say of is not among these, and after a warning of the predictor
    nothing counts as calm until so many steps were judged one by one.

    Attributes:
        loss_line, norm_line: up to which loss and gradient norm are calm, as of the last `settle`;
            minus infinity while nothing is.
        batch_size: of the step judged last.
    """

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._norms: deque[float] = deque(maxlen=RECENT)
        self.loss_line = -math.inf
        self.norm_line = -math.inf
        self.batch_size = -1
        self._last: StepRecord | None = None

    def is_calm(self, record: StepRecord) -> bool:
        """Whether the judgement of this step may wait. NaN compares false, so it never may."""
        last = self._last
        return (
            last is not None
            and record.loss <= self.loss_line
            and (record.grad_norm <= self.norm_line or not record.grad_norm_seen)
            and (not record.observed or all(map(math.isfinite, record.observed.values())))
            and not record.scaler_skipped
            and record.batch_size == self.batch_size
            and (record.loss_scale == last.loss_scale or math.isnan(last.loss_scale))
        )

    @property
    def knows_calm(self) -> bool:
        """Whether any step can be calm: `RECENT` ones were judged since the last trouble."""
        return self.loss_line > -math.inf

    def judged(self, record: StepRecord, *, trouble: bool = False, noticed: bool = False) -> None:
        """Takes in a step that was judged; `settle` has to come behind the last of them.

        Args:
            trouble: the predictor warned.
            noticed: a detector had something to say.
        """
        self._last = record
        if trouble or not math.isfinite(record.loss):
            self._losses.clear()
            self._norms.clear()
        elif not noticed:
            self._losses.append(record.loss)
            self._norms.append(record.grad_norm)

    def settle(self) -> None:
        """Draws the lines anew."""
        if self._last is not None:
            self.batch_size = self._last.batch_size
        self.loss_line, self.norm_line = _line(self._losses), _line(self._norms)


def _line(values: deque[float]) -> float:
    if len(values) < RECENT:
        return -math.inf
    highest = max(values)
    return highest + MARGIN * (highest - min(values))
