from __future__ import annotations

from supervisor.config import load_policy
from supervisor.detectors.loss import ConstantLossDetector
from supervisor.pipeline import Pipeline
from supervisor.records import Alert, Severity, StepRecord
from supervisor.settings import RunSettings


def records(losses: list[float], norm: float = 0.0) -> list[StepRecord]:
    return [
        StepRecord(step=step, loss=loss, grad_norm=norm, loss_seen=True, grad_norm_seen=True)
        for step, loss in enumerate(losses)
    ]


def alerts(run: list[StepRecord]) -> list[Alert]:
    detector = ConstantLossDetector()
    return [alert for record in run if (alert := detector.update(record)) is not None]


def test_a_dead_training_is_told_once() -> None:
    (alert,) = alerts(records([2.0, 1.5, *[1.25] * 500]))

    assert (alert.step, alert.severity) == (101, Severity.HIGH)
    assert alert.message.startswith(
        "the loss has been exactly 1.25 for 100 steps, and its gradient"
    )


def test_learned_by_heart_and_a_constant_with_a_gradient_are_said_mildly() -> None:
    (learned,) = alerts(records([2.0, *[0.0] * 200]))
    (surrogate,) = alerts(records([1.0] * 200, norm=0.3))

    assert learned.severity is surrogate.severity is Severity.LOW
    assert "learned by heart" in learned.message
    assert "while there is a gradient" in surrogate.message


def test_a_loss_that_changes_in_its_last_digit_is_none() -> None:
    assert alerts(records([1.0 + 1e-7 * (step % 2) for step in range(500)])) == []


def test_nothing_is_treated_for_it() -> None:
    run = records([2.0, *[1.25] * 300])

    judged = Pipeline(RunSettings(), load_policy("aggressive")).update_all(run)

    assert [j.decision for j in judged if j.decision is not None] == []
