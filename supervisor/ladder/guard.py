"""The guard before the update: what must not reach the weights."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supervisor.codes import Subject
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.detectors.statistics.run_scale import SHARE, RunScale
from supervisor.records import Cause, CrashRisk, StepRecord
from supervisor.settings import GuardSettings

MIN_WINDOW = 10
"""Accepted steps until a value can be called absurd."""

USUAL_VARIATION = 2.0
"""Absurd values lie beyond this times the 99th percentile of the recent ones, too: single steps of
healthy runs reach 15 times the median of their gradient norm."""

RECORD_LEAP = 1.5
"""A loss that many times above everything the run has seen, its untrained start included, and
`LEAP_RISE` times the recent median has left its course whatever the spike factor."""

LEAP_RISE = 2.0

PERSIST_STEPS = 3
"""Trouble so soon after a skipped update means that the weights are sick, not the batch."""

SURE = 2.0
"""Times the line of the norm's scale, because norms vary more than losses do."""

SUDDEN = frozenset({"loss_leap", "loss_persistence"})
LEFT = SUDDEN | {"steady_climb", "departure", "slow_divergence"}
"""Contributions to the risk that say that the loss has left its course."""

LONG_AGO = -(10**9)

RUIN_LOOK = 3
RUIN_ENOUGH = 2

CERTAIN = 0.9
"""Risk that counts as trouble by itself after a skip."""


def _loss_rises(risk: CrashRisk) -> bool:
    return any("loss" in name for name in risk.contributions)


class GuardVerdict(enum.Enum):
    SKIP = "skip"
    ROLLBACK = "rollback"


class Guard:
    """Decides whether this update may be applied.

    A non-finite or absurd step is skipped once or twice; when the loss is no better right after,
    or skips accumulate, the weights themselves are sick and the guard asks for a rollback.

    What ruins weights is the gradient that reaches them. A norm is absurd that is far beyond the
    recent ones, *and* beyond those with which this run began (`RunScale.line`), after the script's
    own clipping (but for a loss that is absurd, too: clipped or not, its direction is of no use).
    The loss alone is judged only where no norm was seen.
    """

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        self.loss = RobustWindow(50)
        self.scale = RunScale()
        self.norm_scale = RunScale()
        self._grad = RobustWindow(100)
        self._highest_loss = -math.inf
        self._ruin: deque[int] = deque(maxlen=RUIN_LOOK)
        self._skips: list[int] = []
        self._ruined_at = LONG_AGO
        self._first_bad_step = -1
        self._loss_was_bad = False
        self._tick = 0

    def forget_levels(self) -> None:
        """An announced change: what is absurd is learned anew, from `MIN_WINDOW` steps."""
        self.loss.clear()
        self._grad.clear()
        self._skips = []
        self._loss_was_bad = False

    def shows_ruin(self, risk: CrashRisk) -> bool:
        """Whether the loss has left its course, and this step or the last ones are beyond all that
        the untrained weights gave (`is_ruin`); one alone is a batch."""
        return sum(self._ruin) >= RUIN_ENOUGH and not LEFT.isdisjoint(risk.contributions)

    @property
    def onset_step(self) -> int:
        """Step of the first skip of the present trouble, -1 if there is none."""
        return self._first_bad_step if self._skips else -1

    def update(self, record: StepRecord, risk: CrashRisk) -> tuple[GuardVerdict | None, CrashRisk]:
        """Judges a step; returns what is to be done, and the risk with the guard's reason."""
        self._tick += 1
        self._ruin.append(int(self.is_ruin(record)))
        if self._skips:
            window = self.settings.skip_window
            self._skips = [t for t in self._skips if self._tick - t <= window]
        (bad_loss, why), subject = self._judge_loss(record), Subject.LOSS
        # Whether a high loss may reach the weights is its gradient's affair.
        skips = bad_loss and (record.has_nonfinite_loss or not record.grad_norm_seen)
        if not record.has_nonfinite_loss and not skips:
            (skips, why), subject = self._judge_gradient(record), Subject.GRADIENT
        recent = bool(self._skips) and self._tick - self._skips[-1] <= PERSIST_STEPS
        # A rise of the loss that comes right behind a skipped update did not come from its batch.
        sick = recent and (
            (self._loss_was_bad and bad_loss)
            or (self.is_ruin(record) and risk.probability >= CERTAIN)
            or (self.is_ruin(record) and risk.alarm and _loss_rises(risk))
        )
        after = "right after a skipped update"
        if not sick and self._stays_ruined(risk):
            sick, after = True, "and stays beyond all that the untrained weights gave"
            self._ruined_at = self._tick
        if not (skips or sick):
            self._accept(record)
            return None, risk
        told = (why, subject) if why else (f"{risk.reason}, {after}", risk.subject)
        risk = replace(risk, cause=self.cause(record), reason=told[0], subject=told[1])
        if sick or len(self._skips) + 1 >= max(2, self.settings.rollback_after_skips):
            self._skips.append(self._tick)
            return GuardVerdict.ROLLBACK, risk
        if not self._skips:
            self._first_bad_step = record.step
        self._skips.append(self._tick)
        self._loss_was_bad = bad_loss or record.has_nonfinite_grad
        return GuardVerdict.SKIP, risk

    def _stays_ruined(self, risk: CrashRisk) -> bool:
        """Whether sudden trouble is no batch's fault, because it stays beyond all that could be
        healthy. Said once; where going back has not helped, the rungs have other treatments."""
        is_news = self._tick - self._ruined_at > self.settings.skip_window
        sudden = risk.alarm and not SUDDEN.isdisjoint(risk.contributions)
        return self.settings.skip_spike and is_news and sudden and self.shows_ruin(risk)

    def is_ruin(self, record: StepRecord) -> bool:
        """Whether this step is beyond what the run can have come to by learning: not finite, or a
        loss or a gradient norm far above those of its untrained weights."""
        if _is_nonfinite(record):
            return True
        is_high = record.loss_seen and record.loss > self.scale.line
        return is_high or (record.grad_norm_seen and record.grad_norm > self.norm_scale.line)

    def forgive(self) -> None:
        """The state was put back: earlier skips say nothing about these weights."""
        self._skips = []
        self._loss_was_bad = False

    def cause(self, record: StepRecord) -> Cause:
        return Cause.NONFINITE if _is_nonfinite(record) else Cause.SPIKE

    def _judge_loss(self, record: StepRecord) -> tuple[bool, str]:
        if record.has_nonfinite_loss:
            return self.settings.skip_nonfinite, f"loss {record.loss:g}"
        if not record.loss_seen or not self._judges_level(record):
            return False, ""
        loss, window = record.loss, self.loss
        if not loss > self.scale.line:
            return False, ""
        if not self._is_absurd(loss, window, self.scale) and not self._is_leap(loss):
            return False, ""
        return True, f"the loss is {loss:.6g}, its recent median {window.median:.6g}"

    def _judge_gradient(self, record: StepRecord) -> tuple[bool, str]:
        norm = record.grad_norm
        if not record.loss > self.settings.spike_factor * self.scale.line:
            norm = min(norm, record.clips_at)  # what reaches the weights
        if record.has_nonfinite_grad:
            if record.loss_scale > 0:  # the GradScaler leaves this update out by itself
                return False, ""
            return self.settings.skip_nonfinite, f"gradient norm {record.grad_norm:g}"
        if not record.grad_norm_seen or not self._judges_level(record):
            return False, ""
        scale = self.norm_scale
        least = max(SURE * scale.line, scale.level / SHARE)  # ten times the untrained size
        if not norm > least or not self._is_absurd(norm, self._grad, scale):
            return False, ""
        median = self._grad.median
        return True, f"the gradient norm is {norm:.6g}, its recent median {median:.6g}"

    def _judges_level(self, record: StepRecord) -> bool:
        return self.settings.skip_spike and not record.in_environment

    def _is_absurd(self, value: float, window: RobustWindow, scale: RunScale) -> bool:
        if len(window) < MIN_WINDOW:
            return False
        if window.lowest < 0:
            return self._is_absurd_linear(value, window)
        if window.median <= 0:  # most are zero, which is no yardstick for the others
            return value > self.settings.spike_factor * scale.line
        return value > self.settings.spike_factor * window.median and _is_unusual(value, window)

    def _is_absurd_linear(self, value: float, window: RobustWindow) -> bool:
        """For losses at or below zero: ratios mean nothing, spreads do."""
        spread = max(window.highest - window.lowest, abs(window.median))
        return value > window.median + 3 * self.settings.spike_factor * spread

    def _is_leap(self, loss: float) -> bool:
        window = self.loss
        if len(window) < MIN_WINDOW or not loss > RECORD_LEAP * self._highest_loss:
            return False
        leapt = window.lowest > 0 and loss > LEAP_RISE * window.median
        return leapt and _is_unusual(loss, window)

    def _accept(self, record: StepRecord) -> None:
        if record.loss_seen and math.isfinite(record.loss):
            self.loss.add(record.loss)
            self.scale.update(record.loss)
            self._highest_loss = max(self._highest_loss, record.loss)
        if record.grad_norm_seen:
            self._grad.add(record.grad_norm)
            self.norm_scale.update(record.grad_norm)

    def state_dict(self) -> dict[str, Any]:
        return {
            "loss": self.loss.state_dict(),
            "grad": self._grad.state_dict(),
            "scale": self.scale.state_dict(),
            "norm_scale": self.norm_scale.state_dict(),
            "highest_loss": self._highest_loss,
            "ruin": list(self._ruin),
            "ruined_at": self._ruined_at,
            "skips": list(self._skips),
            "first_bad_step": self._first_bad_step,
            "loss_was_bad": self._loss_was_bad,
            "tick": self._tick,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])
        self._grad.load_state_dict(state["grad"])
        self.scale.load_state_dict(state["scale"])
        self.norm_scale.load_state_dict(state["norm_scale"])
        self._highest_loss = float(state["highest_loss"])
        self._ruin = deque(state["ruin"], maxlen=RUIN_LOOK)
        self._ruined_at = int(state["ruined_at"])
        self._skips = list(state["skips"])
        self._first_bad_step = int(state["first_bad_step"])
        self._loss_was_bad = bool(state["loss_was_bad"])
        self._tick = int(state["tick"])


def _is_unusual(value: float, window: RobustWindow) -> bool:
    """Beyond all variation of the positive values in `window`.

    The 90th percentile lies 1.28 standard deviations above the median: its fifth power in the log
    domain, 6.4.
    """
    median = window.median
    wide = median * min((window.quantile(0.9) / median) ** 5, 1e300)
    return value > max(wide, USUAL_VARIATION * window.quantile(0.99))


def _is_nonfinite(record: StepRecord) -> bool:
    return record.has_nonfinite_loss or record.has_nonfinite_grad
