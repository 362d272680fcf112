"""The guard before the update: what must not reach the weights."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor.codes import Subject
from supervisor.detectors.statistics.changes import is_odd_batch
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.detectors.statistics.run_scale import SHARE, RunScale
from supervisor.records import Cause, CrashRisk, StepRecord
from supervisor.settings import GuardSettings

MIN_WINDOW = 10
"""Accepted steps until a value can be called absurd."""

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
"""Risk from which on trouble is certain: a rollback comes first, and nothing is worth saving."""


class GuardVerdict(enum.Enum):
    SKIP = "skip"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormLimit:
    """From which gradient norm on an update is left out, as is known before the step.

    Attributes:
        norm: larger ones are; infinity where no finite norm is.
        loss: but only beside a loss above this; minus infinity: beside any.
    """

    norm: float = math.inf
    loss: float = -math.inf


NO_LIMIT = NormLimit()


class Guard:
    """Decides whether this update may be applied, by what it would do to the weights.

    A step that is not finite, or whose gradient is absurd, is left out. Trouble right behind it,
    too many such steps, or a loss that stays ruined say that the weights are sick: a rollback.
    """

    def __init__(self, settings: GuardSettings) -> None:
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        self.loss = RobustWindow(50)
        self.scale = RunScale()
        self.norm_scale = RunScale()
        self._grad = RobustWindow(100)
        self._ruin: deque[int] = deque(maxlen=RUIN_LOOK)
        self._skips: list[int] = []
        self._ruined_at = LONG_AGO
        self._first_bad_step = -1
        self._tick = 0
        self._foreseen = 0  # of the newest norms in the window: they are still to be judged

    def forget_levels(self) -> None:
        """An announced change: what is absurd is learned anew, from `MIN_WINDOW` steps."""
        self.loss.clear()
        self._grad.clear()
        self._foreseen = 0
        self._skips = []

    def foresee(self, record: StepRecord) -> None:
        """Takes in the norm of a calm step before the step is judged, for `norm_limit`."""
        if record.grad_norm_seen:
            self._grad.add(record.grad_norm)
            self._foreseen += 1

    def norm_limit(self, *, clips_at: float, has_moving_objective: bool) -> NormLimit:
        """What is absurd in the next step: far beyond the recent norms, and beyond those with which
        this run began.

        What the script's own clipping leaves of a norm counts, unless the loss is absurd as well:
        then its direction is of no use, however short it is.

        Args:
            clips_at: the bound of that clipping; infinity where it does not clip.
            has_moving_objective: see `StepRecord`; then no finite norm is absurd.
        """
        window, scale, factor = self._grad, self.norm_scale, self.settings.spike_factor
        if not self.settings.skip_spike or has_moving_objective or len(window) < MIN_WINDOW:
            return NO_LIMIT
        if window.median <= 0:  # most are zero, which is no yardstick for the others
            unusual = factor * scale.line
        else:
            unusual = max(self._usual_limit(window), _variation(window))
        limit = max(_least(scale), unusual)
        loss = -math.inf if clips_at > limit else factor * self.scale.line
        return NormLimit(norm=limit, loss=loss)

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
        is_foreseen = record.grad_norm_seen and self._foreseen > 0
        self._foreseen -= is_foreseen
        if self._skips:
            window = self.settings.skip_window
            self._skips = [t for t in self._skips if self._tick - t <= window]
        skips, why, subject = self._judge(record)
        sick, after = False, "right after a skipped update"
        if self._skips:
            sick = self._is_ruin_after_skip(record, risk)
        if not sick and risk.alarm and self._stays_ruined(risk):
            sick, after = True, "and stays beyond all that the untrained weights gave"
            self._ruined_at = self._tick
        if not (skips or sick):
            self._accept(record, is_foreseen=is_foreseen)
            return None, risk
        told = (why, subject) if skips else (f"{risk.reason}, {after}", risk.subject)
        risk = replace(risk, cause=self.cause(record), reason=told[0], subject=told[1])
        if sick or self._has_skipped_enough():
            self._skips.append(self._tick)
            return GuardVerdict.ROLLBACK, risk
        if not self._skips:
            self._first_bad_step = record.step
        self._skips.append(self._tick)
        return GuardVerdict.SKIP, risk

    def _judge(self, record: StepRecord) -> tuple[bool, str, Subject]:
        """Whether this update must not reach the weights, why, and by which value."""
        if record.loss_seen and not math.isfinite(record.loss):
            return self._skips_nonfinite_loss(), f"loss {record.loss:g}", Subject.LOSS
        if record.grad_norm_seen and not math.isfinite(record.grad_norm):
            why = f"gradient norm {record.grad_norm:g}"
            return self._skips_nonfinite_gradient(record), why, Subject.GRADIENT
        if not (record.grad_norm_seen and self._is_absurd_gradient(record)):
            return False, "", Subject.GRADIENT
        norm, median = self._applied_norm(record), self._grad.median
        why = f"the gradient norm is {norm:.6g}, its recent median {median:.6g}"
        return True, why, Subject.GRADIENT

    def _skips_nonfinite_loss(self) -> bool:
        return self.settings.skip_nonfinite

    def _skips_nonfinite_gradient(self, record: StepRecord) -> bool:
        """Under a loss scaler it is left out already."""
        return self.settings.skip_nonfinite and not record.loss_scale > 0

    def _is_absurd_gradient(self, record: StepRecord) -> bool:
        """See `norm_limit`. Not with inputs of another distribution within the usual range: the
        next batch shows what they are."""
        if record.grad_norm <= _least(self.norm_scale) or is_odd_batch(record):
            return False
        moves = record.has_moving_objective
        limit = self.norm_limit(clips_at=record.clips_at, has_moving_objective=moves)
        is_absurd_loss = limit.loss == -math.inf or record.loss > limit.loss
        return record.grad_norm > limit.norm and is_absurd_loss

    def _applied_norm(self, record: StepRecord) -> float:
        """What reaches the weights of it, see `norm_limit`."""
        if record.loss > self.settings.spike_factor * self.scale.line:
            return record.grad_norm
        return min(record.grad_norm, record.clips_at)

    def _is_ruin_after_skip(self, record: StepRecord, risk: CrashRisk) -> bool:
        """Whether trouble is there again so soon that the skipped batch was not to blame.

        Without it weights with NaN are seen only after `rollback_after_skips` lost updates
        (test_escalation: a NaN that is there again right after a skip).
        """
        recent = self._tick - self._skips[-1] <= PERSIST_STEPS
        return recent and risk.alarm and self.is_ruin(record)

    def _has_skipped_enough(self) -> bool:
        """Without it a norm that stays high would be skipped for ever, because what is skipped
        changes no window (test_escalation: absurd gradients alone)."""
        return len(self._skips) + 1 >= max(2, self.settings.rollback_after_skips)

    def _stays_ruined(self, risk: CrashRisk) -> bool:
        """Whether a sudden alarm is no batch's fault, because it stays beyond all that could be
        healthy. Said once; where going back has not helped, the rungs have other treatments."""
        is_news = self._tick - self._ruined_at > self.settings.skip_window
        sudden = not SUDDEN.isdisjoint(risk.contributions)
        return self.settings.skip_spike and is_news and sudden and self.shows_ruin(risk)

    def is_ruin(self, record: StepRecord) -> bool:
        """Whether this step is beyond what the run can have come to by learning: not finite, or a
        loss or a gradient norm far above those of its untrained weights."""
        nonfinite = is_nonfinite(record)
        if nonfinite or record.in_environment or record.others_trained:
            return nonfinite
        is_high = record.loss_seen and record.loss > self.scale.line
        return is_high or (record.grad_norm_seen and record.grad_norm > self.norm_scale.line)

    def forgive(self) -> None:
        """The state was put back: earlier skips say nothing about these weights."""
        self._skips = []

    def cause(self, record: StepRecord) -> Cause:
        return Cause.NONFINITE if is_nonfinite(record) else Cause.SPIKE

    def _usual_limit(self, window: RobustWindow) -> float:
        """`spike_factor` times the largest usual norms, and more while the window is not full: the
        fewer norms are known, the farther out the largest to come may lie."""
        rarity = window.size / len(window)
        return self.settings.spike_factor * rarity * window.quantile(0.99)

    def _accept(self, record: StepRecord, *, is_foreseen: bool = False) -> None:
        if record.loss_seen and math.isfinite(record.loss):
            self.loss.add(record.loss)
            self.scale.update(record.loss)
        if record.grad_norm_seen:
            if not is_foreseen:
                self._grad.add(record.grad_norm)
            self.norm_scale.update(record.grad_norm)

    def state_dict(self) -> dict[str, Any]:
        return {
            "loss": self.loss.state_dict(),
            "grad": self._grad.state_dict(),
            "scale": self.scale.state_dict(),
            "norm_scale": self.norm_scale.state_dict(),
            "ruin": list(self._ruin),
            "ruined_at": self._ruined_at,
            "skips": list(self._skips),
            "first_bad_step": self._first_bad_step,
            "tick": self._tick,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"])
        self._grad.load_state_dict(state["grad"])
        self._foreseen = 0
        self.scale.load_state_dict(state["scale"])
        self.norm_scale.load_state_dict(state["norm_scale"])
        self._ruin = deque(state["ruin"], maxlen=RUIN_LOOK)
        self._ruined_at = int(state["ruined_at"])
        self._skips = list(state["skips"])
        self._first_bad_step = int(state["first_bad_step"])
        self._tick = int(state["tick"])


def _least(scale: RunScale) -> float:
    """No smaller norm is absurd: ten times the untrained size, or above all of that time."""
    return max(SURE * scale.line, scale.level / SHARE)


def _variation(window: RobustWindow) -> float:
    """How far the positive values in `window` vary, where that is wide.

    The 90th percentile lies 1.28 standard deviations above the median: its fifth power in the log
    domain, 6.4.
    """
    median = window.median
    return median * min((window.quantile(0.9) / median) ** 5, 1e300)


def is_nonfinite(record: StepRecord) -> bool:
    """Whether loss or gradient norm of a step is NaN or infinite."""
    if record.loss_seen and not math.isfinite(record.loss):
        return True
    return record.grad_norm_seen and not math.isfinite(record.grad_norm)
