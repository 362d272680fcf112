"""What counts as a crash, the same for all replays of one trouble."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from supervisor.analysis.explain.onset import healthy, nonfinite
from supervisor.analysis.explain.replay import ReplayedRun
from supervisor.events.event import of_kind
from supervisor.events.step_events import RiskEvent

EXPLODED = 3.0
"""A value this many times the highest healthy one is an explosion."""
ABSURD = 10.0
"""A loss this many times the highest healthy one counts whatever the identical replay did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """Lines above which a loss or a gradient norm counts as a crash.

    Attributes:
        loss, grad_norm: infinite if the trouble does not show there.
        alarms: whether the predictor's alarms count, because neither number shows the trouble.
    """

    loss: float = math.inf
    grad_norm: float = math.inf
    alarms: bool = False

    def crash_step(self, replay: ReplayedRun, skipped: Collection[int] = ()) -> int | None:
        """Returns the first step that crashed, None without one; skipped steps do not count."""
        rows = replay.rows
        bad = nonfinite(rows) | (rows["loss"] > self.loss) | (rows["grad_norm"] > self.grad_norm)
        bad &= ~np.isin(rows["step"], list(skipped))
        steps = [int(step) for step in rows["step"][bad]]
        if self.alarms:
            steps += alarm_steps(replay)
        ended = _failed_at(replay)
        if ended is not None:
            steps.append(ended)
        return min(steps, default=None)


def criterion_of(unchanged: ReplayedRun, recorded: np.ndarray, onset_step: int) -> Criterion:
    """Returns how the trouble shows in the identical replay.

    Args:
        unchanged: the identical replay.
        recorded: rows of the run itself, for what is healthy.
        onset_step: where its trouble began.
    """
    rows = unchanged.rows[unchanged.rows["step"] >= onset_step]
    loss, loss_shows = _line(healthy(recorded, "loss", onset_step), rows["loss"])
    grad, grad_shows = _line(healthy(recorded, "grad_norm", onset_step), rows["grad_norm"])
    highest = float(np.max(healthy(recorded, "loss", onset_step), initial=0.0))
    if highest > 0:
        loss = min(loss, ABSURD * highest)
    if loss_shows:
        grad = math.inf  # single gradients vary more than losses
    alarms = not (loss_shows or grad_shows or bool(nonfinite(rows).any()))
    return Criterion(loss=loss, grad_norm=grad, alarms=alarms and _failed_at(unchanged) is None)


def alarm_steps(replay: ReplayedRun) -> list[int]:
    """Returns the steps at which the predictor's alarm began."""
    risks = of_kind(replay.events, RiskEvent)
    return [event.step for event in risks if event.alarm and event.step is not None]


def _line(usual: np.ndarray, replayed: np.ndarray) -> tuple[float, bool]:
    """The middle between calm values and the peak, on a logarithmic scale; and if there is one."""
    finite = replayed[np.isfinite(replayed)]
    if len(usual) < 3 or not len(finite):
        return math.inf, False
    highest, peak = float(usual.max()), float(finite.max())
    if highest > 0:
        shows = peak > EXPLODED * highest
        return (math.sqrt(highest) * math.sqrt(peak), True) if shows else (math.inf, False)
    spread = highest - float(usual.min()) or abs(highest) or 1.0
    shows = peak > highest + EXPLODED * spread
    return (highest + 0.5 * (peak - highest), True) if shows else (math.inf, False)


def _failed_at(replay: ReplayedRun) -> int | None:
    """The step during which the process failed; None if it ended as asked."""
    note = replay.note
    if replay.timed_out or (note is not None and note.kind == "completed"):
        return None
    if note is None and replay.returncode == 0:
        return None
    rows = replay.rows
    return int(rows["step"][-1]) + 1 if len(rows) else 0
