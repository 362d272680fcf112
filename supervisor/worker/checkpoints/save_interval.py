"""When to save by time: what saves cost this training, against what a failure would."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from supervisor.settings import CheckpointSettings
from supervisor.worker.core.budget import CHECKPOINTS, Share
from supervisor.worker.core.worker_context import WorkerContext

FIRST_COST_S = 1e-3
"""Assumed until the first save was measured, and at least."""


@dataclass(frozen=True, slots=True)
class _Save:
    step: int
    at: float
    stalled_s: float
    usual_step_s: float


class SaveInterval:
    """The time of the next save, from the measured cost of those before.

    A save costs what the training stands still for (what it holds is gathered and copied), and what
    the steps took longer than usual while it was written: the writing thread needs the
    interpreter's lock and the disk (``python -m benchmarks.beside_writing``).

    Args:
        now: `time.monotonic()`, as everywhere here.
        failures: of earlier attempts, after `trained_s` seconds of training together.

    Attributes:
        next_at: when to save next.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        now: float,
        *,
        failures: int = 0,
        trained_s: float = 0.0,
    ) -> None:
        self._settings = settings
        self._failures = failures
        self._began = now - trained_s
        self._now = now
        self._cost_s = 0.0
        self._last: _Save | None = None
        self.next_at = now + self.seconds()

    @classmethod
    def of(cls, context: WorkerContext) -> SaveInterval:
        """Of an attempt that begins now."""
        settings, order = context.settings.checkpoint, context.order
        return cls(settings, time.monotonic(), failures=order.failures, trained_s=order.trained_s)

    @property
    def is_measuring(self) -> bool:
        """A save was begun, and `written` not called for it yet."""
        return self._last is not None

    def seconds(self) -> float:
        """Between two saves, within the limits that the settings give.

        Until failures were seen: sqrt(2 x cost x MTBF) (Young, CACM 17:9, 1974), at least what
        keeps the cost within their share of the time. Then: Daly's optimum for the mean time that
        this run trains between two failures, the present attempt included; it costs what it costs,
        because less would be lost more. It is below a third of that time wherever a save takes less
        than a tenth of it.
        """
        settings = self._settings
        if settings.every_s is not None:
            return settings.every_s
        cost = max(self._cost_s, FIRST_COST_S)
        if self._failures:
            between = (self._now - self._began) / self._failures
            least = min(settings.min_interval_s, between / 3.0)
            return min(max(daly(cost, between), least), settings.max_interval_s)
        young = math.sqrt(2.0 * cost * settings.mtbf_s)
        affordable = Share(CHECKPOINTS * settings.max_overhead).apart_s(cost)
        return min(max(young, affordable, settings.min_interval_s), settings.max_interval_s)

    def begun(self, step: int, now: float, stalled_s: float, usual_step_s: float) -> None:
        """All is gathered and copied, and the training goes on.

        Args:
            step: steps done.
            stalled_s: how long it waited.
            usual_step_s: by which the next steps are measured; 0.0 if not known.
        """
        self._last = _Save(step, now, stalled_s, usual_step_s)
        self._now = now
        self.next_at = now + self.seconds()

    def written(self, step: int, now: float, took_s: float) -> None:
        """Called at the first boundary at which the save is on disk.

        Args:
            step: steps done.
            took_s: seconds of writing; steps cannot have been held up for longer than that.
        """
        last = self._last
        if last is None:
            return
        self._last = None
        self._now = now
        longer = 0.0
        if last.usual_step_s > 0.0:
            longer = now - last.at - (step - last.step) * last.usual_step_s
        cost = last.stalled_s + min(max(longer, 0.0), took_s)
        self._cost_s = 0.5 * (self._cost_s + cost) if self._cost_s else cost
        self.next_at = last.at + self.seconds()


def daly(cost_s: float, between_s: float) -> float:
    """Returns the seconds of training between two saves that lose the least (Daly, Future
    Generation Computer Systems 22, 2006, equation 37).

    Args:
        cost_s: for which a save holds the training up.
        between_s: mean time between failures.
    """
    if cost_s >= 2.0 * between_s:
        return between_s
    ratio = cost_s / (2.0 * between_s)
    return (
        math.sqrt(2.0 * cost_s * between_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_s
    )
