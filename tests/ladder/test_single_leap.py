"""Ruin that came in one leap, with weights that moved as always."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from supervisor.config import load_policy
from supervisor.detectors.statistics.other_data import SHIFT
from supervisor.ladder.single_leap import MOVED, OVER, SingleLeap
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings

AT = 120


def treated(losses: Mapping[int, float], moved: float | None) -> list[str]:
    """The treatments of a loss that comes down from 2 to 0.5 and leaps at step `AT`."""
    pipeline = Pipeline(RunSettings(), load_policy())
    found: list[str] = []
    for step in range(AT + 30):
        loss = losses.get(step, losses[AT] if step >= AT else max(0.5, 2.0 - 0.02 * step))
        is_looked_at = moved is not None and AT <= step < AT + 3
        record = StepRecord(
            step=step,
            loss=loss * (1.0 + 0.01 * (step * 7 % 5)),
            grad_norm=1.0,
            loss_seen=True,
            grad_norm_seen=True,
            observed={MOVED: moved} if is_looked_at and moved is not None else {},
        )
        decision = pipeline.update(record).decision
        found += decision.actions if decision else ()
    return [name for name in found if name != "checkpoint"]


def test_such_a_leap_is_an_objective_and_not_treated() -> None:
    assert treated({AT: 8.0}, moved=0.9) == []


@pytest.mark.parametrize("moved", [None, 40.0])
def test_it_is_treated_where_weights_moved_far_or_nothing_is_known(moved: float | None) -> None:
    assert "rollback" in treated({AT: 8.0}, moved=moved)


@pytest.mark.parametrize("grown", [20.0, float("nan")])
def test_it_is_treated_once_it_grows(grown: float) -> None:
    growing = dict.fromkeys(range(AT + 6, AT + 30), grown)

    assert set(treated({AT: 8.0, **growing}, moved=0.9)) & {"rollback", "skip_update"}


def _step(loss: float, moved: float | None = None) -> StepRecord:
    observed = {} if moved is None else {MOVED: moved}
    return StepRecord(step=1, loss=loss, loss_seen=True, observed=observed)


def test_inputs_of_another_distribution_are_another_matter() -> None:
    leap = SingleLeap()
    leap.update(
        StepRecord(step=1, loss=8.0, loss_seen=True, observed={MOVED: 0.9, SHIFT: 2.0}),
        is_ruin=True,
    )

    assert not leap.is_on


def test_the_next_ruin_is_another_one() -> None:
    leap = SingleLeap()
    leap.update(_step(8.0, 0.9), is_ruin=True)
    for _ in range(OVER):
        leap.update(_step(1.0), is_ruin=False)
    assert leap.is_on

    leap.update(_step(1.0), is_ruin=False)
    assert not leap.is_on

    leap.update(_step(8.0), is_ruin=True)
    assert not leap.is_on


def test_what_it_knows_survives_a_resume() -> None:
    for steps in ([], [_step(8.0, 0.9)]):
        leap, copy = SingleLeap(), SingleLeap()
        for step in steps:
            leap.update(step, is_ruin=True)

        copy.load_state_dict(json.loads(json.dumps(leap.state_dict())))

        assert copy.state_dict() == leap.state_dict()
