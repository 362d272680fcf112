"""The ablation switches off what it names, and a rule is kept for a training that needs it."""

from __future__ import annotations

import pytest

from benchmarks.scorecard.rules import LADDER, RULES, switched_off
from benchmarks.scorecard.treated_training import TOLERANCE, TreatedTraining
from supervisor.config import load_policy
from supervisor.pipeline import Pipeline
from supervisor.settings import RunSettings
from supervisor.testing import synthetic_run


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_off_only_while_it_is_switched_off(rule: str) -> None:
    before = [vars(part.owner)[part.method] for part in LADDER.get(rule, ())]

    with switched_off(rule):
        during = [vars(part.owner)[part.method] for part in LADDER.get(rule, ())]

    assert [vars(part.owner)[part.method] for part in LADDER.get(rule, ())] == before
    assert not set(during) & set(before)


@pytest.mark.parametrize(
    ("signal", "kind"), [("nonfinite", "nan_gradient"), ("loss_leap", "spike")]
)
def test_a_signal_that_is_switched_off_does_not_speak(signal: str, kind: str) -> None:
    def spoken() -> set[str]:
        pipeline = Pipeline(RunSettings(), load_policy())
        judged = pipeline.update_all(list(synthetic_run(kind, 1000)))
        return {name for judgement in judged for name in judgement.risk.contributions}

    usual = spoken()
    with switched_off(signal):
        without = spoken()

    assert signal in usual
    assert signal not in without


def test_a_rate_that_creeps_up_needs_few_treatments_because_a_relapse_brings_a_cut_along() -> None:
    """Under the line of a leap of the rate, so that nothing else holds it."""
    healthy = TreatedTraining("vae", "none", 0, 0).run()

    usual = TreatedTraining("vae", "creeping_lr", 120, 0).run()
    without = TreatedTraining("vae", "creeping_lr", 120, 0, without="cut_on_relapse").run()

    assert usual.final_loss <= TOLERANCE * healthy.final_loss
    assert without.treatments > 2 * usual.treatments  # until the budget ends: then it is left alone
