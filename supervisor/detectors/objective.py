"""Latent variables that are no longer used, and inputs that are not what they were."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import linear_regression

from supervisor.detectors.base import Detector
from supervisor.detectors.statistics.changes import IN_RANGE, SCALE, SHIFT, OtherData
from supervisor.records import Alert, Cause, Severity, StepRecord


class OtherDataDetector(Detector):
    """Batches of another distribution (``input_shift``), where the loss rises with them.

    One whose numbers have another spread (``input_scale``) is told at once: it is not normalised as
    the others are, or carries nothing. Other data within the usual range are told when a second
    batch has shown that they stay.
    """

    name = "other_data"
    observed_only = True
    _state = ("_judge",)

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._judge = OtherData()

    def forget_levels(self) -> None:
        """What it adopts is announced in the same step; its lines do not depend on levels."""

    def update(self, record: StepRecord) -> Alert | None:
        adopted = self._judge.update(record)
        shift = record.observed.get(SHIFT, 0.0)
        self.score = float(self._judge.waits)
        scale = record.observed.get(SCALE, 1.0)
        if adopted:
            return self.alert(
                record,
                severity=Severity.MEDIUM,
                category="data",
                kind="other_data",
                cause=Cause.OTHER,
                message=adopted,
                value=shift,
                threshold=1.0,
            )
        if shift < 1.0 or 1.0 / IN_RANGE <= scale <= IN_RANGE:
            return None
        return self.alert(
            record,
            severity=Severity.HIGH,
            category="data",
            kind="inputs_out_of_range",
            cause=Cause.OTHER,
            message=(
                f"the numbers of this batch spread {scale:.3g} times as far as usual, and the loss "
                "rises with them; look at what normalises or decodes the samples"
            ),
            value=scale,
            threshold=IN_RANGE,
        )


LEVELS = ("", "yellow", "orange", "red")

TREND_STEPS = 50
"""Within so many steps a collapsing KL falls to a third or less; an annealed one takes hundreds."""

STILL_FALLING = 0.7

EXPECTED_WITHIN = 200
"""Steps; only where steps take a millisecond are looks inside the model rarer."""


@dataclass(kw_only=True, eq=False, repr=False)
class PosteriorCollapseDetector(Detector):
    """Counts indicators of posterior collapse among the observed values.

    It reads ``kl``, ``latent_variance``, ``active_units`` (a share) and ``recon_loss``. Yellow is
    one indicator, orange several, red several at `confirm` looks in a row.

    Two relative lines come before the fixed ones: a KL that has lost most of its best level, and
    one that has halved within `TREND_STEPS`.

    Args:
        kl_below: KL of the posterior from the prior, nats.
        variance_below: mean variance of the latent means.
        kl_share_below: KL as a share of its highest since the warm-up.
        active_below: share of active units; a unit is active when the variance over the data of
            its posterior mean exceeds 0.01 (Burda et al., 2015).
        recon_slope_above: rise of the reconstruction loss per step.
        window: observations for that slope.
        every: steps between looks; 0 adapts: 100 before step 1,000, 50 before 5,000, then 20.
        confirm: looks in a row with several indicators that make red.
        patience: looks in a row after which to stop is suggested (metadata ``suggest_stop``).
        warmup_steps: steps without judgement, while the KL term is annealed.
        expected: latents ought to be there; if none was seen `EXPECTED_WITHIN` steps after the
            warm-up, that is reported once.
    """

    name = "posterior_collapse"
    _state = (
        "_recon",
        "_steps",
        "_kl",
        "_best_kl",
        "_next",
        "_count",
        "_level",
        "_detections",
        "_missed",
    )

    kl_below: float = 0.01
    kl_share_below: float = 0.2
    variance_below: float = 0.1
    active_below: float = 0.1
    recon_slope_above: float = 0.001
    window: int = 50
    every: int = 0
    confirm: int = 3
    patience: int = 200
    warmup_steps: int = 100
    expected: bool = False

    def _begin(self) -> None:
        self._recon: deque[float] = deque(maxlen=self.window)
        self._steps: deque[int] = deque(maxlen=self.window)
        self._kl: deque[tuple[int, float]] = deque()
        self._best_kl = 0.0
        self._next = self.warmup_steps
        self._count = 0
        self._level = 0
        self._detections = 0
        self._missed = not self.expected

    def forget_levels(self) -> None:
        """Forgets all but whether latents were seen, or missed."""
        missed = self._missed
        self.reset()
        self._missed = missed

    def update(self, record: StepRecord) -> Alert | None:
        observed = record.observed
        if not observed:
            return None if self._missed else self._tell_missing(record)
        recon = observed.get("recon_loss", math.nan)
        if abs(recon) < 1e150:
            self._recon.append(recon)
            self._steps.append(record.step)
        seen = [n for n in ("kl", "latent_variance", "active_units") if n in observed]
        if not seen:
            return None if self._missed else self._tell_missing(record)
        self._missed = True
        self._remember_kl(record.step, observed.get("kl", math.nan))
        if record.step < self._next:
            return None
        self._next = record.step + (self.every or self._interval(record.step))
        return self._look(record)

    def _interval(self, step: int) -> int:
        if step < 1000:
            return 100
        return 50 if step < 5000 else 20

    def _tell_missing(self, record: StepRecord) -> Alert | None:
        if record.step < self.warmup_steps + EXPECTED_WITHIN:
            return None
        self._missed = True
        return self.alert(
            record,
            severity=Severity.LOW,
            category="collapse",
            kind="no_latents",
            cause=Cause.OTHER,
            message="no latents were seen, so a collapse cannot be: name the model's outputs or "
            "layers mu and logvar, or call supervisor.observe(mu=..., logvar=..., recon_loss=...)",
        )

    def _look(self, record: StepRecord) -> Alert | None:
        found = self._indicators(record)
        self._count = self._count + 1 if len(found) > 1 else 0
        level = min(len(found), 2)
        if self._count >= self.confirm:
            level = 3
        self._detections = self._detections + 1 if found else 0
        self.score = (0.0, 0.4, 0.8, 1.2)[level]
        stop = self._detections == self.patience
        fresh = level > self._level
        self._level = level
        if not (fresh or stop):
            return None
        return self._report(record, level, found, stop)

    def _lines(self) -> dict[str, float]:
        """Returns the lines below which each value has collapsed."""
        return {
            "kl": self.kl_below,
            "latent_variance": self.variance_below,
            "active_units": self.active_below,
        }

    def _indicators(self, record: StepRecord) -> dict[str, float]:
        found = {
            name: float(record.observed[name])
            for name, line in self._lines().items()
            if record.observed.get(name, math.nan) < line
        }
        found |= self._fall(float(record.observed.get("kl", math.nan)))
        slope = self._slope()
        if slope > self.recon_slope_above:
            found["recon_slope"] = slope
        return found

    def _remember_kl(self, step: int, kl: float) -> None:
        if not 0.0 <= kl < 1e150 or step < self.warmup_steps:
            return
        self._best_kl = max(self._best_kl, kl)
        self._kl.append((step, kl))
        while len(self._kl) > 1 and self._kl[1][0] <= step - TREND_STEPS:
            self._kl.popleft()  # the first is the newest of those that are old enough

    def _fall(self, kl: float) -> dict[str, float]:
        """Returns the relative indicators; an annealed KL that has settled has none."""
        if not self._kl or not kl >= 0.0:
            return {}
        step, earlier = self._kl[0]
        if self._kl[-1][0] - step < TREND_STEPS or kl > STILL_FALLING * earlier:
            return {}
        found = {}
        if kl < self.kl_share_below * self._best_kl:
            found["kl_share"] = kl / self._best_kl
        if kl < 0.5 * earlier:
            found["kl_trend"] = kl / earlier
        return found

    def _slope(self) -> float:
        """Least-squares slope of the reconstruction loss per step; 0 while the window fills."""
        if len(self._recon) < self.window or self._steps[0] == self._steps[-1]:
            return 0.0
        return linear_regression(self._steps, self._recon).slope

    def _report(self, record: StepRecord, level: int, found: dict[str, float], stop: bool) -> Alert:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        severity = (Severity.LOW, Severity.LOW, Severity.MEDIUM, Severity.HIGH)[level]
        return self.alert(
            record,
            severity=severity,
            category="collapse",
            kind="posterior_collapse",
            cause=Cause.COLLAPSE,
            message=f"posterior collapse, {LEVELS[level]}: {shown}",
            advice="anneal the KL term, use free bits, or weaken the decoder",
            value=float(len(found)),
            threshold=2.0,
            metadata={
                "level": LEVELS[level],
                "indicators": found,
                "lines": self._lines(),
                "suggest_stop": stop,
            },
        )
