"""What the script changes by itself: rate, batch size, data."""

from __future__ import annotations

import math

from supervisor.detectors.statistics.named_state import NamedState
from supervisor.records import StepRecord

LR_RATIO = 1.5
"""Ratio of two learning rates in a row that is a change."""


class ChangeWatch(NamedState):
    """Counts the steps since the script last changed its learning rate or batch size.

    Detectors that compare with the past hold back for a while after such a change. Cuts and rises
    of the rate count, smooth schedules do not.
    """

    __slots__ = _state = ("since", "_lr", "_batch_size")

    def __init__(self) -> None:
        self.since = 10**9
        self._lr = math.nan
        self._batch_size = 0

    def update(self, record: StepRecord) -> bool:
        """Takes in a step; returns whether something changed at it."""
        changed = False
        lr, before = record.lr, self._lr
        if lr > 0:  # false for NaN
            if before > 0 and lr != before:
                ratio = lr / before
                changed = ratio > LR_RATIO or ratio < 1 / LR_RATIO
            self._lr = lr
        size, old = record.batch_size, self._batch_size
        if size > 0:
            # The last, smaller batch of an epoch is no change of the setting.
            if old > 0 and (size > old * 1.01 or size * 2 <= old):
                changed = True
            self._batch_size = size
        self.since = 0 if changed else self.since + 1
        return changed


CHANGE = "script_change"
"""Observed where the loss is above all of the last steps and the script has just done one of
`DONE`, by its number (`supervisor.worker.step_record.script_changes`)."""

OTHER_PARAMETERS = 1.0
REFERENCE = 2.0
REWRITTEN = 3.0
ANOTHER_OPTIMIZER = 4.0

DONE = {
    OTHER_PARAMETERS: "the optimizer trains other parameters than before",
    REFERENCE: "the script has put other weights into a network that no optimizer trains",
    REWRITTEN: "the script has written weights anew that are trained",
    ANOTHER_OPTIMIZER: "the script trains with another optimizer than before",
}


def told(record: StepRecord) -> str:
    """Returns the sentence with which a new level is adopted, or nothing."""
    done = DONE.get(record.observed.get(CHANGE, 0.0))
    if done is None:
        return ""
    return f"{done}, and the loss of {record.loss:.6g} belongs to that: the new level is adopted"


FEWEST_STEPS = 8
GROWTH = 30.0
"""Between its first rate and the present one, by the same factor at each step: warm-ups grow along
a line or a curve, and those that do not grow by less."""

SAME = 0.02
"""Part of a factor's growth by which factors may differ: rates are rounded."""

LOW = 0.1
"""Of the highest rate so far: what begins to grow there, or with the first step, may be a test. A
rate that begins to creep up from its usual size is trouble."""

LEAST = 1e-4
"""A smaller growth a step is none that rounding could tell."""


class RateTest(NamedState):
    """Recognises a learning rate finder (a range test): the rate grows by one factor at each step.

    Such a run is meant to diverge, and puts its weights back afterwards. It begins with the first
    step, or far below the rate that was usual. A rate that grows along a
    line is not recognised: a warm-up does the same.

    Attributes:
        is_on: the last step belongs to a test.
        reason: said at the first such step, empty at all others.
    """

    _state = ("_first", "_previous", "_highest", "_factor", "_steps", "is_on")

    def __init__(self) -> None:
        self._first = self._previous = self._factor = math.nan
        self._highest = 0.0
        self._steps = 0
        self.is_on = False
        self.reason = ""

    def update(self, rate: float) -> bool:
        """Takes in a step's rate; returns whether a test is on, or has ended right before it."""
        before, self._previous = self._previous, rate
        highest = self._highest
        if before > highest:
            self._highest = before
        if not rate > before > 0:
            self._steps = 0
        else:
            self._follow(before, rate / before, is_low=not highest or before <= LOW * highest)
        was_on, self.is_on = self.is_on, self._steps >= FEWEST_STEPS and rate > GROWTH * self._first
        self.reason = ""
        if self.is_on and not was_on:
            self.reason = (
                f"the learning rate has grown from {self._first:.3g} to {rate:.3g}, by the factor "
                f"{self._factor:.4g} at each step: nothing is treated while it goes on"
            )
        return was_on or self.is_on

    def _follow(self, before: float, factor: float, *, is_low: bool) -> None:
        growth = factor - 1.0
        if self._steps and abs(factor - self._factor) <= SAME * growth:
            self._steps += 1
            return
        self._first, self._factor = before, factor
        self._steps = int(growth > LEAST and is_low)


SHIFT = "input_shift"
"""Observed where a batch is of another distribution than those before: how far, 1.0 at the line.
Live runs look only where the loss is above all of the last steps, or a reward below
(`supervisor.worker.step_record.input_watch`)."""

SCALE = "input_scale"
"""Observed beside it: the spread of the batch's numbers against the usual one."""

OTHER_SHAPE = 1000.0
"""The shift of samples that have another shape than all known ones, which have one and the same:
longer texts or larger images from here on."""

STEPS = 2
"""Such batches in a row are other data; a single one is an odd batch."""

REST = 100
"""Steps after new data were adopted in which no others are: what goes on changing drifts, as a
scale does that grows at every step. A shape does not."""

IN_RANGE = 3.0
"""Times the usual spread, or a part of it: beyond, numbers are not normalised any more, or carry
nothing, and nobody wants that. Of the corpus' train and validation splits data changed on purpose
have 0.9 to 1.1 times the spread, damaged ones 3.9 and more."""


def is_odd_batch(record: StepRecord) -> bool:
    """Whether the inputs come from another distribution, and lie within the usual range."""
    scale = record.observed.get(SCALE, 1.0)
    return record.observed.get(SHIFT, 0.0) >= 1.0 and 1.0 / IN_RANGE <= scale <= IN_RANGE


class OtherData(NamedState):
    """Tells data that were changed from data that were damaged, and from a single odd batch.

    A loss that rises with other inputs is no sickness of the weights: they have not seen such data.
    Where labels are damaged the inputs are the same, and where inputs are not normalised any more
    their spread is another one: both stay alarms.

    Attributes:
        waits: the batch of this step is the first odd one: the next one shows whether it is the
            batch, the data or the weights, and an alarm waits for it.
    """

    _state = ("waits", "_last", "_adopted")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.waits = False
        self._last = -1
        self._adopted = -REST

    def update(self, record: StepRecord) -> str:
        """Takes in a step; returns the sentence with which new data are adopted, or nothing."""
        shift = record.observed.get(SHIFT, 0.0)
        rests = 0 <= record.step - self._adopted < REST and shift != OTHER_SHAPE
        if shift < 1.0 or rests:
            self.waits = False
            return ""
        again = self.waits and record.step == self._last + 1
        self.waits, self._last = not again, record.step
        scale = record.observed.get(SCALE, 1.0)
        if not again or not is_odd_batch(record):
            return ""
        self._adopted = record.step
        if shift == OTHER_SHAPE:
            return (
                f"since step {record.step - 1} the inputs have another shape, and the loss of "
                f"{record.loss:.6g} belongs to them: the new level is adopted"
            )
        return (
            f"since step {record.step - 1} the inputs come from another distribution ({shift:.3g} "
            f"times as far from the usual as the line, {scale:.3g} times the spread), and the loss "
            f"of {record.loss:.6g} belongs to them: the new level is adopted"
        )
