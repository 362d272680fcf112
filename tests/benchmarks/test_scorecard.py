"""What the scorecard counts of what the ladder decided."""

from __future__ import annotations

import numpy as np

from benchmarks.corpus.outcome import Outcome
from benchmarks.corpus.recipe import Recipe
from benchmarks.corpus.trace import Trace
from benchmarks.scorecard.__main__ import score
from benchmarks.scorecard.card import decisions
from benchmarks.scorecard.judged_course import LATE
from benchmarks.scorecard.labelled_run import LabelledRun
from benchmarks.scorecard.measurement import OURS, Measurement
from benchmarks.scorecard.print_card import print_card

STEPS = 200
HEALTHY = Outcome(label="healthy")
CRASHED = Outcome(label="diverged", onset=100, crash=110, peak=120)


def _measured(outcome: Outcome, *decided: int, intended: tuple[int, ...] = ()) -> Measurement:
    nothing = np.zeros(STEPS)
    recipe = Recipe(architecture="mlp", condition="plain", sick=False, optimizer="adam", lr=1e-3)
    trace = Trace(
        recipe=recipe,
        columns={"loss": nothing},
        observed={},
        inputs={},
        live={},
        intended=intended,
        batch=32,
    )
    made = np.zeros(STEPS, dtype=bool)
    made[list(decided)] = True
    return Measurement(
        run=LabelledRun(trace, outcome),
        strengths={OURS: nothing},
        contributions={},
        risk=nothing,
        evidence=nothing,
        calibrated=nothing,
        decisions=made,
        rankings={OURS: nothing},
    )


def test_decisions_at_healthy_steps_are_counted_and_their_runs() -> None:
    runs = [_measured(HEALTHY, 3, 50), _measured(HEALTHY), _measured(CRASHED, 10, 118)]

    counted = decisions(runs)

    assert counted["decisions"] == 3
    assert counted["in_runs"] == 2
    assert counted["runs"] == 3


def test_a_crash_is_met_until_a_few_steps_after_its_peak() -> None:
    in_time, late = _measured(CRASHED, 120 + LATE), _measured(CRASHED, 121 + LATE)

    assert decisions([in_time, late])["met"] == 1


def test_the_card_tells_decisions_and_those_with_data_changed_on_purpose(capsys) -> None:
    runs = [_measured(HEALTHY, 5, intended=(4,)), _measured(CRASHED, 10, 30, 118)]

    print_card("train", score(runs))

    printed = capsys.readouterr().out
    assert (
        "decisions at healthy steps: 3 in 2 of 2 runs; with data changed on purpose 1 in 1 of 1; "
        "at crashes, until 5 steps after the peak: 1 of 1"
    ) in printed
    assert "| plain | 0 of 1 | 0 | 0 | 3 |" in printed
