"""An absurd gradient with inputs of another distribution waits for the next batch."""

from __future__ import annotations

from supervisor.config import load_policy
from supervisor.detectors.statistics.changes import SCALE, SHIFT
from supervisor.ladder.guard import Guard, GuardVerdict
from supervisor.records import CrashRisk, StepRecord


def verdict_at_a_new_task(observed: dict[str, float]) -> GuardVerdict | None:
    guard = Guard(load_policy().guard)
    verdict = None
    for step in range(151):
        norm = 1.0 if step < 40 else 0.01 + 0.001 * (step % 3)
        loss = 2.0 if step < 40 else 0.01
        is_last = step == 150
        record = StepRecord(
            step=step,
            loss=9.0 if is_last else loss,
            grad_norm=40.0 if is_last else norm,
            loss_seen=True,
            grad_norm_seen=True,
            observed=observed if is_last else {},
        )
        verdict, _ = guard.update(record, CrashRisk(step=step, probability=0.0))
    return verdict


def test_inputs_as_always_with_such_a_gradient_are_left_out() -> None:
    assert verdict_at_a_new_task({}) is GuardVerdict.SKIP


def test_other_inputs_within_the_usual_range_are_not() -> None:
    assert verdict_at_a_new_task({SHIFT: 3.0, SCALE: 1.1}) is None


def test_inputs_out_of_range_are_left_out() -> None:
    assert verdict_at_a_new_task({SHIFT: 3.0, SCALE: 30.0}) is GuardVerdict.SKIP
