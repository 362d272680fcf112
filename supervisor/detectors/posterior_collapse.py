"""A latent-variable model that stops to use its latent variables."""

from __future__ import annotations

import math
from collections import deque

from supervisor.detectors.base import Detector
from supervisor.records import Alert, Cause, Severity, StepRecord

LEVELS = ("", "yellow", "orange", "red")


class PosteriorCollapseDetector(Detector):
    """Counts indicators of posterior collapse among the observed values.

    It looks at ``kl``, ``latent_variance``, ``active_units`` (a share) and ``recon_loss``; what was
    not observed is no indicator. Yellow is one indicator, orange several, red several at
    `confirm` looks in a row: then the model is worth saving as it was before.

    Args:
        kl_below: KL of the posterior from the prior, nats.
        variance_below: mean variance of the latent means.
        active_below: share of active units; a unit is active when the variance over the data of
            its posterior mean exceeds 0.01 (Burda et al., 2015).
        recon_slope_above: rise of the reconstruction loss per step.
        window: looks' steps for that slope.
        every: steps between looks; 0 adapts: 100 before step 1,000, 50 before 5,000, then 20.
        confirm: looks in a row with several indicators that make red.
        patience: looks in a row after which to stop is suggested (metadata ``suggest_stop``).
        warmup_steps: steps without judgement, while the KL term is annealed.
    """

    name = "posterior_collapse"
    _state = ("_recon", "_next", "_count", "_level", "_detections", "_now")

    def __init__(
        self,
        *,
        kl_below: float = 0.01,
        variance_below: float = 0.1,
        active_below: float = 0.1,
        recon_slope_above: float = 0.001,
        window: int = 50,
        every: int = 0,
        confirm: int = 3,
        patience: int = 200,
        warmup_steps: int = 100,
    ) -> None:
        self.kl_below = kl_below
        self.variance_below = variance_below
        self.active_below = active_below
        self.recon_slope_above = recon_slope_above
        self.window = window
        self.every = every
        self.confirm = confirm
        self.patience = patience
        self.warmup_steps = warmup_steps
        self._begin()

    def _begin(self) -> None:
        self._recon: deque[float] = deque(maxlen=self.window)
        self._next = self.warmup_steps
        self._count = 0
        self._level = 0
        self._detections = 0
        self._now = 0

    def update(self, record: StepRecord) -> Alert | None:
        observed = record.observed
        if not observed:
            return None
        recon = observed.get("recon_loss", math.nan)
        if abs(recon) < 1e150:
            self._recon.append(recon)
        seen = [n for n in ("kl", "latent_variance", "active_units") if n in observed]
        self._now += 1
        if not seen or self._now < self._next:
            return None
        self._next = self._now + (self.every or self._interval())
        return self._look(record)

    def _interval(self) -> int:
        if self._now < 1000:
            return 100
        return 50 if self._now < 5000 else 20

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

    def _indicators(self, record: StepRecord) -> dict[str, float]:
        lines = {
            "kl": self.kl_below,
            "latent_variance": self.variance_below,
            "active_units": self.active_below,
        }
        found = {
            name: float(record.observed[name])
            for name, line in lines.items()
            if record.observed.get(name, math.nan) < line
        }
        slope = self._slope()
        if slope > self.recon_slope_above:
            found["recon_slope"] = slope
        return found

    def _slope(self) -> float:
        """Least-squares slope of the reconstruction loss per step; 0 while the window fills."""
        count = len(self._recon)
        if count < self.window or count < 2:
            return 0.0
        middle = 0.5 * (count - 1)
        top = math.fsum((i - middle) * value for i, value in enumerate(self._recon))
        return top / (count * (count * count - 1) / 12.0)

    def _report(self, record: StepRecord, level: int, found: dict[str, float], stop: bool) -> Alert:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
        severity = (Severity.LOW, Severity.LOW, Severity.MEDIUM, Severity.HIGH)[level]
        return self.alert(
            record,
            severity=severity,
            category="collapse",
            kind="posterior_collapse",
            cause=Cause.COLLAPSE,
            message=f"posterior collapse, {LEVELS[level]}: {shown}; anneal the KL term, use free "
            "bits, or weaken the decoder",
            value=float(len(found)),
            threshold=2.0,
            metadata={"level": LEVELS[level], "indicators": found, "suggest_stop": stop},
        )
