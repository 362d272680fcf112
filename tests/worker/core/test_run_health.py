"""Which steps may wait for their judgement."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from supervisor.records import StepRecord
from supervisor.worker.core.run_health import RECENT, Deferral

STEP = StepRecord(step=0, loss=1.5, loss_seen=True, grad_norm=1.5, grad_norm_seen=True)


def _after_recent() -> Deferral:
    """Losses and norms between 1 and 2 were judged, as many as are remembered."""
    line = Deferral()
    for index in range(RECENT):
        value = 1.0 + index / (RECENT - 1)
        line.judged(replace(STEP, step=index, loss=value, grad_norm=value))
    line.settle()
    return line


@pytest.mark.parametrize(
    ("changes", "calm"),
    [
        ({}, True),
        ({"loss": 2.09}, True),
        ({"loss": 2.11}, False),
        ({"grad_norm": 2.11}, False),
        ({"loss": math.nan}, False),
        ({"grad_norm": math.inf}, False),
        ({"grad_norm": math.nan, "grad_norm_seen": False}, True),
        ({"observed": {"kl": 3.0}}, True),
        ({"observed": {"kl": math.nan}}, False),
        ({"scaler_skipped": True}, False),
        ({"batch_size": 3}, False),
        ({"loss_scale": 1024.0}, True),
    ],
)
def test_a_step_is_calm_when_nothing_of_it_could_be_a_leap(
    changes: dict[str, object], calm: bool
) -> None:
    assert _after_recent().is_calm(replace(STEP, **changes)) is calm  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"trouble": True}, {"trouble": True, "noticed": True}, {"loss": math.nan}]
)
def test_nothing_is_calm_before_enough_was_seen_or_after_trouble(
    changes: dict[str, object],
) -> None:
    line = _after_recent()
    loss = changes.pop("loss", STEP.loss)

    line.judged(replace(STEP, loss=loss), **changes)  # type: ignore[arg-type]
    line.settle()

    assert not Deferral().is_calm(STEP)
    assert not line.is_calm(STEP)


def test_a_value_that_a_detector_noticed_makes_no_other_one_usual() -> None:
    line = _after_recent()

    for _ in range(RECENT):
        line.judged(replace(STEP, loss=9.0), noticed=True)
    line.settle()

    assert line.is_calm(STEP)
    assert not line.is_calm(replace(STEP, loss=9.0))
