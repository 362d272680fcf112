"""What is replayed if no single change cured it: smaller and smaller doses. Pure.

A control comes first: with a rate of 0 no update changes anything. If that avoids the crash, the
rate is divided until it is cured. If it does not, the state at the start or the batches are wrong.
Trouble that goes without one update, but keeps to its step in another order of the data, is
replayed with a healthy batch in that place: if it comes again, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from supervisor.analysis.explain.replay import ReplayChange
from supervisor.analysis.explain.rules import (
    BEFORE_ONSET,
    IMMEDIATE_STEPS,
    LATER_BATCHES,
    LR_DIVIDED,
    RATE_ZERO,
    RESHUFFLED,
    USUAL_WEIGHTS,
    WITHOUT_BATCH,
    Effect,
)


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
