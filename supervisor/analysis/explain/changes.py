"""What replays try: changes, smaller and smaller doses, and how a trouble is recognised again.

A control comes first: with a rate of 0 no update changes anything. If that avoids the crash, the
rate is divided until it is cured. If it does not, the state at the start or the batches are wrong.
Trouble that goes without one update, but keeps to its step in another order of the data, is
replayed with a healthy batch in that place: if it comes again, the code is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from supervisor.analysis.explain.onset import healthy, nonfinite, rate_jump
from supervisor.analysis.explain.replay import ReplayChange, ReplayedRun, ReplayRunner
from supervisor.analysis.explain.rules import (
    BEFORE_ONSET,
    CHANGES,
    CLIPPED,
    FP32,
    FRESH_OPTIMIZER,
    IMMEDIATE_STEPS,
    LATER_BATCHES,
    LR_BEFORE,
    LR_DIVIDED,
    LR_HALF,
    LR_TENTH,
    OLD_WEIGHTS,
    OTHER_SEED,
    RATE_ZERO,
    RESHUFFLED,
    USUAL_WEIGHTS,
    WITHOUT_BATCH,
    Effect,
)
from supervisor.events.event import of_kind
from supervisor.events.step_events import RiskEvent
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.run.rundir import RunDirectory

MAX_SKIPPED = 5
OTHER = 20_231
"""An arbitrary seed that no script is likely to use."""


def changes_to_try(recorded: np.ndarray, onset: int, crash: int) -> list[ReplayChange]:
    """Returns the replays that may be informative about this trouble, in the order of `CHANGES`.

    Args:
        recorded: the run's steps, see `read_steps`.
        onset: first step of the trouble in the run.
        crash: step at which the identical replay crashed.
    """
    skipped = tuple(range(onset, min(max(onset, crash), onset + MAX_SKIPPED - 1) + 1))
    before = list(range(max(0, min(onset, crash) - BEFORE_ONSET), onset + 1))
    experiments: dict[str, dict[str, Any]] = {
        WITHOUT_BATCH: {},
        FP32: {"fp32": True},
        LR_HALF: {"lr_factor": 0.5},
        LR_TENTH: {"lr_factor": 0.1},
        RATE_ZERO: {"lr_factor": 0.0},
        FRESH_OPTIMIZER: {"fresh_optimizer_at": before},
        OTHER_SEED: {"seed": OTHER},
        RESHUFFLED: {"seed": OTHER + 1, "reshuffle": 1},
        OLD_WEIGHTS: {"old_weights_at": before},
    }
    jump = rate_jump(recorded, max(onset, crash))
    if jump is not None:
        experiments[LR_BEFORE] = {"lr_from": jump[0], "lr_factor": jump[1]}
    norms = healthy(recorded, "grad_norm", onset)
    if len(norms):
        experiments[CLIPPED] = {"clip_norm": float(np.median(norms))}
    return [
        ReplayChange(
            name=name,
            experiment=experiments[name],
            skip_steps=skipped if name == WITHOUT_BATCH else (),
        )
        for name in CHANGES
        if name in experiments
    ]


def next_dose(
    effects: Mapping[str, Effect],
    tried: Collection[str],
    *,
    onset: int,
    first_step: int,
    crash: int,
) -> ReplayChange | None:
    """Returns the next informative replay; None if there is none.

    Called after the replays of `changes_to_try`, and again after each that it returned.

    Args:
        effects: of the replays so far.
        tried: names of the replays so far, including those without a result.
        onset, crash: first step of the trouble in the run, and step of the crash of its replay.
        first_step: where the replays begin; 0 for the script's start.
    """
    healthy_batch = ReplayChange(
        name=LATER_BATCHES,
        experiment={"repeat_batch_from": max(first_step, onset - BEFORE_ONSET)},
    )
    if _keeps_to_its_step(effects):
        return None if LATER_BATCHES in tried else healthy_batch
    control = effects.get(RATE_ZERO)
    if control is None or _is_cured(effects):
        return None
    if control is Effect.CURED:
        for name, divisor in LR_DIVIDED.items():
            if name not in tried:
                return ReplayChange(name=name, experiment={"lr_factor": 1 / divisor})
        return None
    if USUAL_WEIGHTS not in tried and first_step == 0 and crash <= IMMEDIATE_STEPS:
        return ReplayChange(name=USUAL_WEIGHTS, experiment={"usual_weights": True})
    return None if LATER_BATCHES in tried else healthy_batch


def _keeps_to_its_step(effects: Mapping[str, Effect]) -> bool:
    """Whether the trouble goes without the update of its step, but keeps to that step in any order
    of the data."""
    cured = {change for change, effect in effects.items() if effect is Effect.CURED}
    return cured - {LATER_BATCHES} == {WITHOUT_BATCH} and effects.get(RESHUFFLED) is Effect.SAME


def _is_cured(effects: Mapping[str, Effect]) -> bool:
    """Whether a change cured it; a rate of 0 does not count, since nothing is learned."""
    return any(effect is Effect.CURED for change, effect in effects.items() if change != RATE_ZERO)


def start_before(
    rundir: RunDirectory,
    runner: ReplayRunner,
    onset_step: int,
    say: Callable[[str], None] = lambda _: None,
) -> Checkpoint | None:
    """Returns the newest stable checkpoint before a step, else the newest that verifies.

    One so close that its state may already be sick is taken only if there is no older one. `say` is
    called for each damaged one.
    """
    told: set[int] = set()

    def reject(checkpoint: Checkpoint, why: str) -> None:
        if checkpoint.step not in told:
            told.add(checkpoint.step)
            say(f"the checkpoint of step {checkpoint.step} is damaged and passed over ({why})")

    ring = CheckpointRing(rundir.checkpoints, runner.settings.checkpoint, on_rejected=reject)
    limit = max(1, onset_step - BEFORE_ONSET + 1)
    for before in (limit - IMMEDIATE_STEPS, limit):
        stable = ring.last_stable(before_step=before)
        found = stable or ring.newest_verified(before_step=before)
        if found is not None:
            return found
    return None


def first_difference(recorded: np.ndarray, replayed: np.ndarray, until: int) -> int | None:
    """Returns the first step before `until` whose loss differs from the recorded one in any bit."""
    losses: dict[int, set[float]] = {}
    for step, loss in zip(recorded["step"], recorded["loss"], strict=True):
        losses.setdefault(int(step), set()).add(float(loss))
    for step, loss in zip(replayed["step"], replayed["loss"], strict=True):
        known = losses.get(int(step), set())
        if step < until and np.isfinite(loss) and known and float(loss) not in known:
            return int(step)
    return None


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
