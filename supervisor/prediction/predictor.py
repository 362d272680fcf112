"""The crash predictor: from one step's evidence to a probability with reasons."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from supervisor.detectors.statistics.named_state import NamedState
from supervisor.prediction.after_restart import AfterRestart
from supervisor.prediction.calibration import KNOTS, calibrate, subject_of, weigh
from supervisor.prediction.climb import WINDOW, Climb, RiseFromZero
from supervisor.prediction.first_rows import FirstRows
from supervisor.prediction.level_drift import WINDOW as LEVEL_WINDOW
from supervisor.prediction.level_drift import LevelDrift
from supervisor.prediction.moving_objective import reward_of
from supervisor.prediction.trajectory import Trajectory
from supervisor.records import Cause, CrashRisk, StepRecord
from supervisor.risk_lines import RiskLines

DISTRUST = 0.5
"""Evidence so strong that its steps say nothing about the usual variation: a matter of measuring,
so that a policy's lines change what is done about a risk, never the risk."""

LEFT_COURSE = math.log(2.5)
"""Above the usual loss by that ratio a leap is an alarm by itself; with 3 for leaps above all that
the run has seen nothing changed on the corpus."""

CAUSES: dict[str, Cause] = {
    "nonfinite": Cause.NONFINITE,
    "loss_warning": Cause.SPIKE,
    "loss_leap": Cause.SPIKE,
    "loss_persistence": Cause.DIVERGENCE,
    "gradient_warning": Cause.SPIKE,
    "steady_climb": Cause.DIVERGENCE,
    "departure": Cause.DIVERGENCE,
    "reward_fall": Cause.REWARD,
    "first_rows": Cause.DIVERGENCE,
    "rise_from_zero": Cause.DIVERGENCE,
    "lost_at_restart": Cause.DIVERGENCE,
}

HAZARDS: dict[str, tuple[Cause, float]] = {
    "loss_scale": (Cause.LOSS_SCALE, 0.6),
    "slow_divergence": (Cause.DIVERGENCE, 0.55),
    "posterior_collapse": (Cause.COLLAPSE, 0.4),
}
"""Detector whose score 1.0 means this probability by itself; others only report."""

SLOW = {"steady_climb": WINDOW, "departure": LEVEL_WINDOW, "reward_fall": LEVEL_WINDOW}
"""Signal → steps before it at which its trouble began, at the latest."""

OF_BATCH = frozenset(
    {
        *("loss_leap", "loss_persistence", "steady_climb", "departure", "reward_fall"),
        *("first_rows", "rise_from_zero"),
    }
)
"""Signals that other data give, too."""

WAITING = 0.45
"""The most that they count while the batch is odd: a checkpoint is worth it."""


class CrashPredictor(NamedState):
    """Combines the signals of a step into the probability of a crash within 20 steps.

    Two tiers, whose lines the policy draws: a *warning* asks for a checkpoint, may be wrong 5 times
    in 10,000 steps at the usual line; an *alarm* asks for treatment. What counts 0.5 or more needs
    persistence, a second signal, or a leap beyond everything usual, because single steps of healthy
    heavy-tailed runs look like trouble.

    In a game (`MovingObjective`) the loss is the sum of what several players want and has no
    trajectory: of it only leaps above all that the run has seen count, beside values that are not
    finite. In reinforcement learning the reward is judged instead.

    Args:
        lines: of the policy.

    Attributes:
        waits: the next step's batch is odd (`OtherData`): what its loss shows is a warning.
    """

    _state = (
        *("_loss", "_grad", "_climb", "_drift", "_reward", "_first_rows", "_from_zero", "_restart"),
        *("_loss_warned", "_loss_strong", "_nonfinite", "_onset"),
    )

    def __init__(self, lines: RiskLines) -> None:
        self._lines = lines
        self.waits = False
        self.reset()

    def reset(self) -> None:
        self._loss = Trajectory()
        self._grad = Trajectory(floor=0.05)
        self._climb = Climb()
        self._drift = LevelDrift()
        self._first_rows = FirstRows()
        self._from_zero = RiseFromZero()
        self._restart = AfterRestart()
        self._reward = LevelDrift(linear=True)
        self._loss_warned: deque[int] = deque(maxlen=3)
        self._loss_strong: deque[int] = deque(maxlen=2)
        self._nonfinite: deque[int] = deque(maxlen=5)
        self._onset = -1

    def forget_levels(self) -> None:
        """An announced change comes with the next step: levels are learned anew from there.

        For ten steps only values that are not finite and detectors with fixed lines can raise an
        alarm.
        """
        self._loss.forget()
        self._grad.forget()
        self._climb.reset()
        self._drift.reset()
        self._reward.reset()
        self._first_rows.stop()
        self._from_zero.reset()
        self._restart.reset()
        for seen in (self._loss_warned, self._loss_strong):
            seen.clear()
        self._onset = -1

    def resumed(self, step: int, checkpoint: str) -> None:
        """The state of `step` was put back, from a checkpoint of that name if it is ours."""
        self._restart.start(step, checkpoint, list(self._from_zero.recent))

    def update(self, record: StepRecord, scores: Mapping[str, float]) -> CrashRisk:
        """Judges `record`, of which the detectors gave `scores`."""
        found: dict[str, float] = {}
        is_nonfinite = scores.get("nonfinite", 0.0) >= 2.0
        self._nonfinite.append(int(is_nonfinite))
        if is_nonfinite:
            found["nonfinite"] = 0.95 if sum(self._nonfinite) > 1 else 0.8
        if record.in_environment:
            self._judge_reward(found, record.observed)
        else:
            self._judge_loss(found, record)
            self._judge_gradient(found, record)
        if scores and max(scores.values()) >= 1.0:
            self._judge_hazards(found, record, scores)
        return self._conclude(record, found) if found else self._nothing(record.step)

    def _nothing(self, step: int) -> CrashRisk:
        self._onset = -1
        return CrashRisk(step=step, probability=0.0, contributions={}, calibrated=KNOTS[0][1])

    def _judge_hazards(
        self, found: dict[str, float], record: StepRecord, scores: Mapping[str, float]
    ) -> None:
        for name, (_, probability) in HAZARDS.items():
            score = scores.get(name, 0.0)
            if score >= 1.0 and not _is_noise(name, record):
                found[name] = min(0.95, probability + 0.1 * min(score - 1.0, 3.0))

    def _judge_loss(self, found: dict[str, float], record: StepRecord) -> None:
        loss = self._loss
        if not record.loss_seen or not math.isfinite(record.loss):
            loss.calm()
            return
        loss.update(record.loss)
        is_game = record.others_trained
        if not is_game:
            value = record.loss
            self._judge_level(found, max(value, loss.scale.floor) if value >= 0 else value)
            self._judge_special(found, record.loss)
        leapt = loss.above_start and loss.z > 4.5 and loss.rise > LEFT_COURSE
        warned = loss.z > 6 and loss.rise > math.log(1.15) and loss.above_tail
        if is_game:
            warned = False
        self._loss_warned.append(int(warned or leapt))
        self._loss_strong.append(
            int(leapt or (warned and loss.z > 10 and loss.rise > math.log(1.5)))
        )
        if not (warned or leapt):
            return
        if loss.above_record:
            found["loss_warning"] = 0.35
        if loss.rise > LEFT_COURSE:
            found["loss_leap"] = WAITING if is_game else 0.6
        if sum(self._loss_warned) >= 2:
            found["loss_persistence"] = 0.92 if sum(self._loss_strong) == 2 else 0.6

    def _judge_level(self, found: dict[str, float], value: float) -> None:
        if not value:
            return  # zero, in a run of which no size is known yet
        climb, departure = self._climb, self._drift
        climb.update(value)
        if climb.found:
            found["steady_climb"] = 0.6
        departure.update(value)
        if departure.distance >= 1.0:
            found["departure"] = _slow_risk(departure.distance)

    def _judge_special(self, found: dict[str, float], value: float) -> None:
        """Where a course says little: in the first rows, at a level of zero, after a restart."""
        first, from_zero, restart = self._first_rows, self._from_zero, self._restart
        if not first.is_over:
            first.update(value)
            if first.warns:
                found["first_rows"] = 0.55 if first.found else 0.35
        if from_zero.update(value, floor=self._loss.scale.floor):
            found["rise_from_zero"] = 0.6
        if restart.is_on:
            restart.update(value)
            if restart.found:
                found["lost_at_restart"] = 0.55

    def _judge_reward(self, found: dict[str, float], observed: Mapping[str, float]) -> None:
        value = reward_of(observed)
        if math.isfinite(value):
            self._reward.update(-value)
            if self._reward.distance >= 1.0:
                found["reward_fall"] = _slow_risk(self._reward.distance)

    def _judge_gradient(self, found: dict[str, float], record: StepRecord) -> None:
        grad = self._grad
        if record.grad_norm_seen and math.isfinite(record.grad_norm):
            grad.update(record.grad_norm)
        else:
            grad.calm()
        if grad.z > 6 and grad.rise > math.log(3) and grad.above_tail:
            found["gradient_warning"] = 0.32

    def _conclude(self, record: StepRecord, found: dict[str, float]) -> CrashRisk:
        if max(found.values()) >= DISTRUST:
            self._loss.distrust()
            self._grad.distrust()
        if self.waits:
            for name in OF_BATCH.intersection(found):
                found[name] = min(found[name], WAITING)
        main = max(found, key=lambda name: found[name])
        probability = found[main]
        if self._onset < 0 or self._onset > record.step:
            self._onset = record.step
        if main in SLOW:
            self._onset = min(self._onset, max(0, record.step - SLOW[main]))
        return CrashRisk(
            step=record.step,
            probability=probability,
            contributions=found,
            cause=CAUSES[main] if main in CAUSES else HAZARDS[main][0],
            reason=self._reason(main, record),
            warning=self._lines.is_warning(probability),
            alarm=self._lines.is_alarm(probability),
            onset_step=self._onset,
            calibrated=calibrate(weigh(found)),
            subject=subject_of(main, record),
        )

    def _reason(self, main: str, record: StepRecord) -> str:
        if main.startswith("loss_") and main != "loss_scale":
            return (
                f"the loss of {record.loss:.6g} is {_times(self._loss.rise)} times its recent "
                "median"
            )
        if main.startswith("gradient"):
            return (
                f"the gradient norm of {record.grad_norm:.6g} is {_times(self._grad.rise)} times "
                "its recent median"
            )
        if main == "steady_climb":
            return f"the loss has climbed for {WINDOW} steps, to {record.loss:.6g}"
        if main == "departure":
            return f"the mean loss of {LEVEL_WINDOW} steps was well above the best of the run"
        if main == "first_rows":
            return self._first_rows.reason(record.loss)
        if main == "rise_from_zero":
            return (
                f"the loss of {record.loss:.6g} is more than ten times all of its last 50, which "
                "counted as zero"
            )
        if main == "lost_at_restart":
            return self._restart.reason
        if main == "reward_fall":
            return f"the mean reward of {LEVEL_WINDOW} steps has fallen from the best of the run"
        if main == "nonfinite":
            told = [f"loss {record.loss:g}"] if record.loss_seen else []
            if record.grad_norm_seen:
                told.append(f"gradient norm {record.grad_norm:g}")
            return ", ".join(told)
        return f"{main.replace('_', ' ')} is beyond its line"


def _is_noise(hazard: str, record: StepRecord) -> bool:
    """Whether moving objectives give it, too; a policy's ``kl`` is that to its reference, and
    begins at zero."""
    if hazard == "posterior_collapse":
        return record.in_environment
    return hazard == "slow_divergence" and record.has_moving_objective


def _slow_risk(distance: float) -> float:
    """Of a level that left: an alarm, graded, below the rungs that roll back."""
    return min(0.69, 0.55 + 0.05 * (distance - 1.0))


def _times(rise: float) -> str:
    """A rise in the log domain as a factor, without powers of ten."""
    factor = math.exp(min(rise, 50.0))
    return f"{factor:.3g}" if factor < 1000.0 else f"{factor:,.0f}"
