"""Infers the cause of a crash from what cures it. Pure."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass

UNCHANGED = "unchanged"
WITHOUT_BATCH = "without the suspect batch"
FP32 = "fp32"
LR_HALF = "lr/2"
LR_TENTH = "lr/10"
RATE_ZERO = "lr 0"
LR_BEFORE = "lr of before its jump"
FRESH_OPTIMIZER = "fresh optimizer state"
CLIPPED = "gradient clipping"
OTHER_SEED = "another seed"
RESHUFFLED = "data reshuffled"
OLD_WEIGHTS = "weights of the checkpoint"
USUAL_WEIGHTS = "oversized weights at the usual scale"
LATER_BATCHES = "a healthy batch from there on"

LR_DIVIDED = {f"lr/{10**power}": 10.0**power for power in range(2, 10)}
"""Divisors of the rate, tried in turn until one cures."""

CHANGES = (
    UNCHANGED,
    WITHOUT_BATCH,
    LR_BEFORE,
    LR_TENTH,
    RESHUFFLED,
    FRESH_OPTIMIZER,
    FP32,
    LR_HALF,
    OLD_WEIGHTS,
    RATE_ZERO,
    CLIPPED,
    OTHER_SEED,
)
"""In the order of replay: the most informative first, in case time runs out."""

TELLING = (WITHOUT_BATCH, LR_TENTH, RESHUFFLED, FRESH_OPTIMIZER, FP32)
"""One change per curable cause; a diagnosis is settled only after all of them."""

SETTLED = 0.9
"""Replays after `TELLING` cannot overturn a diagnosis of this confidence."""

BEFORE_ONSET = 2
"""Updates before an explosion that may have caused it."""
IMMEDIATE_STEPS = 2
SHIFT_STEPS = 3
"""A crash at most this many steps earlier or later is the same one."""


class Effect(enum.Enum):
    """The effect of a change on the crash."""

    CURED = "cured"
    MOVED = "moved"
    SAME = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The cause, its confidence (0...1), and the reason in one sentence."""

    root_cause: str
    confidence: float
    because: str
    advice: str = ""
    """What to do, if not the general advice for this cause."""


TOO_NARROW = Diagnosis(
    root_cause="precision",
    confidence=0.6,
    because="the values climb whatever is changed, and FP32 holds what ended the run",
)
"""No change of the training stops such a climb; only its end can be avoided, by a wider format."""


def effect_of(change: str, crash: int | None, unchanged_crash: int, skipped: int) -> Effect:
    """Returns the effect of a change on the crash.

    Args:
        change: its name.
        crash: step of the crash under the change, None without one.
        unchanged_crash: step of the crash of the identical replay.
        skipped: updates left out; a growing trouble comes later by as many steps.
    """
    if crash is None:
        return Effect.CURED
    late = crash - unchanged_crash
    if change == WITHOUT_BATCH:
        return Effect.MOVED if late > skipped + 2 * SHIFT_STEPS else Effect.SAME
    return Effect.MOVED if abs(late) > SHIFT_STEPS else Effect.SAME


def diagnose(
    effects: Mapping[str, Effect],
    *,
    steps_to_crash: int,
    from_checkpoint: bool = True,
    is_sudden: bool = False,
) -> Diagnosis:
    """Returns the cause of a crash that the identical replay reproduced.

    Args:
        effects: change → effect, without `UNCHANGED` and without replays that were not made. A rate
            of 0 is only a control (see `next_dose`).
        steps_to_crash: from the start of the identical replay to its crash.
        from_checkpoint: the replays started from a checkpoint, not from the script's start.
        is_sudden: the crash came without a climb.
    """
    effects = {name: effect for name, effect in effects.items() if name != RATE_ZERO}
    cured = {name for name, effect in effects.items() if effect is Effect.CURED}
    if len(effects) >= 5 and len(cured) >= 0.8 * len(effects):
        return _by_chance(cured)
    optimizer = functools.partial(_optimizer, is_sudden=is_sudden)
    for rule in (_data, _precision, optimizer, _learning_rate, _weights, _first_weights):
        found = rule(effects, cured)
        if found is not None:
            return found
    same = {name for name, effect in effects.items() if effect is Effect.SAME}
    if effects and same == set(effects):
        return _nothing_helps(same, steps_to_crash, from_checkpoint)
    return Diagnosis(
        root_cause="unknown",
        confidence=0.2,
        because="what the changes did fits none of the known causes",
    )


def is_settled(effects: Mapping[str, Effect]) -> bool:
    """Whether further replays could not change the diagnosis."""
    if not effects.keys() >= set(TELLING):
        return False
    cured = Effect.CURED in (effects[LR_TENTH], effects[FRESH_OPTIMIZER])
    if cured and LR_HALF not in effects:
        return False
    return diagnose(effects, steps_to_crash=IMMEDIATE_STEPS + 1).confidence >= SETTLED


def _data(effects: Mapping[str, Effect], cured: set[str]) -> Diagnosis | None:
    order = effects.get(RESHUFFLED)
    moves = order in (Effect.CURED, Effect.MOVED)
    if cured & {LR_BEFORE, LR_HALF, LR_TENTH, FP32, FRESH_OPTIMIZER}:
        return None
    if effects.get(WITHOUT_BATCH) in (Effect.CURED, Effect.MOVED):
        if moves:
            text = "it is gone without the batch, and comes at another step in another order"
            return Diagnosis(root_cause="data", confidence=0.95, because=text)
        if LATER_BATCHES in effects:
            return _batch_or_step(effects[LATER_BATCHES])
        text = "it is gone without the batch of that step"
        if len(effects) == 1:
            text += "; nothing else was tried"
        elif order is Effect.SAME and effects.get(OTHER_SEED) is Effect.SAME:
            text = (
                "it is gone without the update of that step, and comes at the same step in another "
                "order of the batches and under another seed: it is its batch, or what the code "
                "does at this step"
            )
            return Diagnosis(root_cause="data", confidence=0.4, because=text)
        elif cured == {WITHOUT_BATCH}:
            text += f", and with none of the {len(effects) - 1} other changes made"
        return Diagnosis(root_cause="data", confidence=0.5 if order is None else 0.6, because=text)
    if LATER_BATCHES in cured:
        text = "it is gone with a healthy batch in place of all from there on, and nothing else"
        text += " cures it"
        return Diagnosis(root_cause="data", confidence=0.7, because=text)
    if moves and OLD_WEIGHTS not in cured and not _put_off(effects):
        text = "it comes at another step when the batches come in another order"
        return Diagnosis(root_cause="data", confidence=0.6, because=text)
    return None


def _batch_or_step(with_a_healthy_batch: Effect) -> Diagnosis:
    """Diagnoses trouble that goes without the update of its step, but keeps to that step."""
    if with_a_healthy_batch is Effect.SAME:
        return Diagnosis(
            root_cause="model_code",
            confidence=0.8,
            because=(
                "it is gone without the update of that step, but comes all the same with a healthy "
                "batch in its place: it is not the batch, but what the code does at this step"
            ),
            advice="look for what the script does at this step alone: a condition on the step, a "
            "hook, a schedule, a callback",
        )
    text = "it is gone without the batch of that step, and with a healthy batch in its place"
    return Diagnosis(root_cause="data", confidence=0.9, because=text)


def _precision(effects: Mapping[str, Effect], cured: set[str]) -> Diagnosis | None:
    if FP32 not in cured:
        return None
    others = cured & {LR_TENTH, WITHOUT_BATCH, FRESH_OPTIMIZER}
    return Diagnosis(
        root_cause="precision",
        confidence=0.6 if others else 0.9,
        because="it is gone when everything is computed in FP32",
    )


def _optimizer(
    effects: Mapping[str, Effect], cured: set[str], *, is_sudden: bool
) -> Diagnosis | None:
    if FRESH_OPTIMIZER not in cured or LR_BEFORE in cured:
        return None
    if LR_HALF in cured:
        if not is_sudden:
            return None
        text = (
            "it came at once, without a rise of the rate, and is gone when the optimizer forgets "
            "its state just before it"
        )
        return Diagnosis(root_cause="optimizer_state", confidence=0.6, because=text)
    others = cured & {LR_TENTH, WITHOUT_BATCH}
    return Diagnosis(
        root_cause="optimizer_state",
        confidence=0.6 if others else 0.9,
        because="it is gone when the optimizer forgets its state just before it",
    )


def _learning_rate(effects: Mapping[str, Effect], cured: set[str]) -> Diagnosis | None:
    if LR_BEFORE in cured:
        text = "it is gone with the learning rate from before its jump"
        return Diagnosis(root_cause="learning_rate", confidence=0.9, because=text)
    rates = cured & {LR_HALF, LR_TENTH}
    dose = next((name for name in LR_DIVIDED if name in cured), None)
    if not rates and dose is not None and OLD_WEIGHTS not in cured:
        text = f"it is gone at {dose}, and at no higher rate"
        return Diagnosis(root_cause="learning_rate", confidence=0.7, because=text)
    if not rates and CLIPPED not in cured:
        if OLD_WEIGHTS in cured or not _put_off(effects):
            return None
        text = "a tenth of the learning rate puts it off: the updates are too large"
        return Diagnosis(root_cause="learning_rate", confidence=0.6, because=text)
    if not rates:
        text = (
            "clipped gradients cure it, and so does no other change: single updates are too large"
        )
        return Diagnosis(root_cause="learning_rate", confidence=0.5, because=text)
    mildest = LR_HALF if LR_HALF in rates else LR_TENTH
    return Diagnosis(
        root_cause="learning_rate",
        confidence=0.6 if cured & {WITHOUT_BATCH, OTHER_SEED} else 0.9,
        because=f"it is gone at {mildest}",
    )


def _put_off(effects: Mapping[str, Effect]) -> bool:
    """A tenth of the rate moves what bad data, code or rounding brings at its own step."""
    return effects.get(LR_TENTH) is Effect.MOVED


def _weights(effects: Mapping[str, Effect], cured: set[str]) -> Diagnosis | None:
    if OLD_WEIGHTS not in cured:
        return None
    return Diagnosis(
        root_cause="weights",
        confidence=0.8 if WITHOUT_BATCH not in cured else 0.5,
        because="it is gone when the weights of the checkpoint are put back just before it",
    )


def _first_weights(effects: Mapping[str, Effect], cured: set[str]) -> Diagnosis | None:
    if USUAL_WEIGHTS not in cured:
        return None
    return Diagnosis(
        root_cause="weights",
        confidence=0.7,
        because="it is gone when weights that begin far too large begin at the usual scale",
        advice="look at the initialisation of the weights",
    )


def _nothing_helps(same: set[str], steps: int, from_checkpoint: bool) -> Diagnosis:
    sure = min(0.8, 0.1 + 0.1 * len(same))
    if steps <= IMMEDIATE_STEPS and from_checkpoint:
        text = "it comes right after the checkpoint whatever is changed: its state is already sick"
        return Diagnosis(root_cause="weights", confidence=sure, because=text)
    made = "whatever is changed" if len(same) > 1 else "with the one change that was made"
    text = f"it comes at the same step {made}"
    return Diagnosis(root_cause="model_code", confidence=sure, because=text)


def _by_chance(cured: set[str]) -> Diagnosis:
    text = "almost any change avoids it: the training is at the edge of stability"
    if LR_HALF in cured:
        return Diagnosis(root_cause="learning_rate", confidence=0.4, because=text)
    return Diagnosis(root_cause="unknown", confidence=0.3, because=text)
