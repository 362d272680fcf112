"""Updates left out again and again for one cause are not booked as a cure."""

from __future__ import annotations

from supervisor.config import load_policy
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.ladder.treatments import Treatments
from supervisor.records import CrashRisk, StepRecord


def outcomes(skips: list[tuple[int, str]], steps: int = 200) -> list[tuple[int, str]]:
    treatments = Treatments(load_policy("default"))
    before = RobustWindow(20)
    for _ in range(20):
        before.add(1.0)
    found = []
    for step in range(steps):
        record = StepRecord(step=step, loss=1.0, loss_seen=True)
        for outcome in treatments.observe(record, CrashRisk(step=step, probability=0.0)):
            found.append((outcome.step, outcome.outcome))
        for at, cause in skips:
            if at == step:
                treatments.start("skip_update", step, before, cause=cause, rung=-1)
    return found


def test_two_skips_help_and_the_third_within_a_window_does_not() -> None:
    assert outcomes([(10, "spike"), (40, "spike"), (70, "spike")]) == [
        (10, "helped"),
        (40, "helped"),
        (70, "failed"),
    ]


def test_skips_far_apart_or_of_other_causes_are_single_batches() -> None:
    apart = outcomes([(10, "spike"), (70, "spike"), (140, "spike")])
    others = outcomes([(10, "spike"), (40, "nonfinite"), (70, "spike")])

    assert {outcome for _, outcome in apart + others} == {"helped"}


def test_an_update_left_out_has_not_helped_where_damaged_memory_was_healed_behind_it() -> None:
    treatments = Treatments(load_policy("default"))
    before = RobustWindow(20)
    before.add(1.0)
    found = []
    for step in range(40):
        record = StepRecord(step=step, loss=1.0, loss_seen=True)
        found += treatments.observe(record, CrashRisk(step=step, probability=0.0))
        if step in (10, 22):
            treatments.start("skip_update", step, before, cause="spike", rung=-1)
        if step == 24:
            treatments.were_not_enough(since_step=20)
            treatments.forget_levels()

    assert [(o.step, o.outcome) for o in found] == [(10, "helped"), (22, "failed")]


def test_a_treatment_on_trial_waits_for_the_level_before_it() -> None:
    treatments = Treatments(load_policy("default"))
    before = RobustWindow(20)
    before.add(1.0)
    treatments.start("rollback", 0, before, cause="spike", rung=1)
    calm = CrashRisk(step=0, probability=0.0)

    waits = []
    for step, loss in enumerate([9.0] * 3 + [1.0] * 7):
        treatments.observe(StepRecord(step=step, loss=loss, loss_seen=True), calm)
        waits.append(treatments.waits_for_level)

    assert (waits[2], waits[-1]) == (True, False)


def test_what_is_on_trial_when_another_level_is_adopted_has_no_outcome() -> None:
    treatments = Treatments(load_policy("default"))
    before = RobustWindow(20)
    before.add(1.0)
    treatments.start("rollback", 0, before, cause="spike", rung=1)
    treatments.forget_levels()
    calm = CrashRisk(step=0, probability=0.0)

    outcomes = [
        treatments.observe(StepRecord(step=step, loss=900.0, loss_seen=True), calm)
        for step in range(200)
    ]

    assert not any(outcomes)
