"""The rules that the ablation switches off: a method of the supervisor, and what replaces it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from supervisor.ladder.escalation import EscalationLadder
from supervisor.ladder.going_back import GoingBack
from supervisor.ladder.guard import Guard
from supervisor.ladder.rung_choice import RungChoice
from supervisor.prediction.predictor import CAUSES, HAZARDS, CrashPredictor

SIGNALS = dict.fromkeys((*CAUSES, *HAZARDS)).keys()
"""Of the predictor; one that is switched off does not count, its windows stay."""


def _answers(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


@dataclass(frozen=True)
class Replaced:
    """A method that stands for a rule, and what it answers while the rule is off."""

    owner: type
    method: str
    answer: Any = False


LADDER: Mapping[str, tuple[Replaced, ...]] = {
    "nonfinite_loss": (Replaced(Guard, "_skips_nonfinite_loss"),),
    "nonfinite_gradient": (Replaced(Guard, "_skips_nonfinite_gradient"),),
    "absurd_gradient": (Replaced(Guard, "_is_absurd_gradient"),),
    "many_skips": (Replaced(Guard, "_has_skipped_enough"),),
    "ruin_after_skip": (Replaced(Guard, "_is_ruin_after_skip"),),
    "lasting_ruin": (Replaced(Guard, "_stays_ruined"),),
    "trial_step": (Replaced(EscalationLadder, "_wants_trial"),),
    "failed_start": (Replaced(EscalationLadder, "_start_anew", None),),
    "rate_spike": (
        Replaced(GoingBack, "hold_rate", None),
        Replaced(GoingBack, "_rate_has_leapt"),
    ),
    "ruin_first": (Replaced(RungChoice, "_is_course_only"),),
    "fp32_on_relapse": (Replaced(GoingBack, "_fp32_on_relapse"),),
    "cut_on_relapse": (Replaced(GoingBack, "_cuts_on_relapse"),),
    "rollback_evaluation": (Replaced(EscalationLadder, "rollback_was_needless", None),),
    "step_down": (Replaced(EscalationLadder, "_step_down", None),),
}
"""Rules of guard and ladder."""

TOGETHER = ("steady_climb+slow_divergence", "many_skips+ruin_after_skip")
"""Rules that may stand in for each other, off at once."""

RULES = (*SIGNALS, *LADDER, *TOGETHER)


@contextmanager
def switched_off(rule: str) -> Iterator[None]:
    """While this is on, the rule is off, or each of ``one+other``; an empty name switches nothing
    off."""
    rules = rule.split("+")
    patches = [
        patch.object(part.owner, part.method, _answers(part.answer))
        for name in rules
        for part in LADDER.get(name, ())
    ]
    signals = SIGNALS & {*rules}
    if signals:
        patches.append(patch.object(CrashPredictor, "_conclude", _conclude_without(signals)))
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def _conclude_without(signals: Collection[str]) -> Callable[..., Any]:
    usual = CrashPredictor._conclude

    def conclude(self: CrashPredictor, record: Any, found: dict[str, float]) -> Any:
        for signal in signals:
            found.pop(signal, None)
        return usual(self, record, found) if found else self._nothing(record.step)

    return conclude
