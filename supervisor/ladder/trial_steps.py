"""When a risen loss is decided by an experiment, and what the experiment says. Pure.

A trial step is one step of the script that is computed with the weights of an older snapshot, too
(`supervisor.worker.treatment.trial_step`). Their loss answers what no record can: is it the state
of the training that went wrong, or have the data or the objective changed?
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from supervisor.detectors.statistics.robust_window import is_leap
from supervisor.records import CrashRisk, StepRecord

TRIAL_STEP = "trial_step"
"""The action."""
TRIAL_OF, TRIAL_LOSS = "trial_of", "trial_loss"
TRIAL_LOW, TRIAL_HIGH = "trial_low", "trial_high"
"""Observed at a trial step: the loss that the weights of step `TRIAL_OF` have on its batch, what
they gave at their time, and what the present ones give on this batch. So its row alone gives the
answer again."""

LOSSES, FEWEST = 32, 10
"""A loss above the highest of so many last ones may be the first of another level."""
AFTER = 4
"""So many in a row are, if the median of the first and of the last of them lies a leap above the
usual one: two may be odd batches, and an alarm takes two."""
LAST = 8
"""Or so many are by their median, among odd ones that are not: then the mean of 20 tells, as an
alarm."""
FORGET = 40
"""Steps after which a higher level is the usual one, as in the predictor (docs/prediction.md)."""
MOST = 2
"""Trials in `REST` steps that decide nothing."""
REST = 100
"""Steps without another one after these, or after one that could not be made."""
WAITS = 32
"""Steps for which an answer may be out, because calm ones are judged together."""
LEVELS = 10
"""Losses that say what a snapshot's weights gave at their time, as after a rollback."""
THIRD = 1.0 / 3.0
"""Of the way from the old level to the new one, by ratio: what lies in the middle decides nothing
(chosen with the 40 cases of `benchmarks/trial_step.py` in view)."""


class TrialAnswer(enum.Enum):
    """STATE: the older weights do well on the new batches. CHANGED: they do as badly."""

    STATE = "state"
    CHANGED = "changed"
    OPEN = "open"


def is_trial(record: StepRecord) -> bool:
    return TRIAL_LOSS in record.observed


def level_of(losses: Sequence[float]) -> float:
    """What some weights gave at their time; NaN where too little is known."""
    known = [loss for loss in losses if math.isfinite(loss)]
    return median(known) if len(known) > LEVELS // 2 else math.nan


def answer_of(record: StepRecord) -> tuple[TrialAnswer, str]:
    """What a trial step says, and in a sentence why."""
    seen = record.observed
    loss = seen[TRIAL_LOSS]
    low, high = seen.get(TRIAL_LOW, math.nan), seen.get(TRIAL_HIGH, math.nan)
    told = (
        f"on the batch of step {record.step} the weights of step {seen[TRIAL_OF]:g} have a loss of "
        f"{loss:.6g}; at their time they had {low:.6g}, and the present ones have {high:.6g}"
    )
    way = _way(loss, low, high)
    if way <= THIRD:
        return TrialAnswer.STATE, f"{told}: the state of the training is to blame"
    if way >= 1.0 - THIRD:
        changed = "the data or the objective has changed, not the weights"
        return TrialAnswer.CHANGED, f"{told}: {changed}; the new level is adopted"
    return TrialAnswer.OPEN, f"{told}: that decides nothing"


def _way(loss: float, low: float, high: float) -> float:
    """How far `loss` lies on the way from `low` to `high`, 0 to 1; NaN where it says nothing."""
    if not (math.isfinite(loss + low + high) and high > low):
        return math.nan
    if min(loss, low) > 0.0:
        return (math.log(loss) - math.log(low)) / (math.log(high) - math.log(low))
    return (loss - low) / (high - low)


class TrialSteps:
    """Follows the loss, and knows which trials were asked for.

    Attributes:
        is_asked: a step to come is to be a trial. `is_next`: all is ready for it.
        is_pending: a boundary is waited for. Steps that were computed before it are no trials.
        onset: the step at which the loss left its level.
        takes_over: no trial has decided a loss beyond all that untrained weights gave: what would
            have been done without one is due.
    """

    def __init__(self) -> None:
        self.forget()
        self._rests_until = 0

    def forget(self) -> None:
        """Other levels are usual from here on."""
        self._usual: deque[float] = deque(maxlen=LOSSES)
        self._line = math.inf
        self._above: list[float] = []
        self._tries = 0
        self.onset = -1
        self.is_asked = self.is_next = self.is_pending = False
        self.takes_over = self._is_ruin = False
        self._waited = 0

    @property
    def usual(self) -> tuple[float, ...]:
        """The losses before it left its level."""
        return tuple(self._usual)

    def update(self, record: StepRecord) -> None:
        """Takes in a step; what a trial has said is known by then."""
        if self.is_asked:
            self._waited += 1
            is_due = (self.is_next or self._is_ruin) and not self.is_pending
            if is_due or self._waited > WAITS:
                self.could_not_be_made()
        if record.step >= self._rests_until + REST:
            self._tries = 0
        loss = record.loss
        if not (record.loss_seen and math.isfinite(loss)):
            return
        if loss > self._line and len(self._above) < FORGET:
            if not self._above:
                self.onset = record.step
            self._above.append(loss)
            return
        if loss > self._line:
            self._usual.clear()
        self._usual += [*self._above, loss]
        self._above.clear()
        self._is_ruin = False
        self._line = max(self._usual) if len(self._usual) >= FEWEST else math.inf

    @property
    def has_left(self) -> bool:
        """Whether the loss was above its level before the present step, too."""
        return len(self._above) > 1

    def _has_left_its_level(self) -> bool:
        """In a leap, and stays there: a penalty that is raised little by little climbs."""
        above, usual = self._above, [*self._usual]
        if above:
            ends = (above[:AFTER], above[-AFTER:])
            return len(above) >= AFTER and all(is_leap(median(end), median(usual)) for end in ends)
        return len(usual) == LOSSES and is_leap(median(usual[-LAST:]), median(usual[:-LAST]))

    def wants(self, record: StepRecord, risk: CrashRisk, *, is_ruin: bool) -> bool:
        """Whether the next step had better be a trial.

        Args:
            is_ruin: it is about to be rolled back, because the loss is beyond all that untrained
                weights gave.
        """
        if self.is_asked or self._tries >= MOST or record.step < self._rests_until:
            return False
        if record.in_environment or record.others_trained or not risk.alarm:
            return False
        return is_ruin or self._has_left_its_level()

    def ask(self, record: StepRecord, risk: CrashRisk, *, is_ruin: bool) -> None:
        """It is asked for."""
        self.is_asked, self._waited = True, 0
        self._rests_until = record.step
        self._is_ruin = self._is_ruin or is_ruin
        if not self._above:
            self.onset = risk.onset_step if risk.onset_step >= 0 else record.step

    def could_not_be_made(self) -> None:
        """What was asked for was refused, or no loss came of it."""
        self.is_asked = self.is_next = self.is_pending = False
        self._rests_until += REST
        self.takes_over = self._is_ruin

    def answered(self, answer: TrialAnswer) -> bool:
        """Takes in what a trial has said; returns whether it was asked for."""
        was_asked, self.is_asked, self.is_next = self.is_asked, False, False
        self._tries = self._tries + 1 if answer is TrialAnswer.OPEN else 0
        self.takes_over = self._is_ruin and self._tries >= MOST
        return was_asked

    def state_dict(self) -> dict[str, Any]:
        return {
            "usual": list(self._usual),
            "line": self._line,
            "above": list(self._above),
            "tries": self._tries,
            "onset": self.onset,
            "asked": self.is_asked,
            "next": self.is_next,
            "waited": self._waited,
            "takes_over": self.takes_over,
            "ruin": self._is_ruin,
            "rests_until": self._rests_until,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._usual = deque(state["usual"], maxlen=LOSSES)
        self._line = float(state["line"])
        self._above, self._tries = list(state["above"]), int(state["tries"])
        self.onset, self._rests_until = int(state["onset"]), int(state["rests_until"])
        self.is_asked, self.takes_over = bool(state["asked"]), bool(state["takes_over"])
        self.is_next, self._waited = bool(state["next"]), int(state["waited"])
        self._is_ruin = bool(state["ruin"])
