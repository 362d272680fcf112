"""Which boundaries are looked at."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from supervisor.risk_lines import RiskLines
from supervisor.settings import RunSettings
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.live.boundary import Boundary


def looked_at(boundary: Boundary, boundaries: BoundarySchedule, steps: range) -> list[int]:
    """Goes through boundaries as the monitor does."""
    found = []
    for step in steps:
        if step >= boundaries.step:
            found.append(step)
            boundary(step)
    return found


def boundary_of(boundaries: BoundarySchedule, **others: Any) -> tuple[Boundary, SimpleNamespace]:
    settings = RunSettings()
    settings.snapshot.every_steps = 10
    settings.stop_after_steps = None
    dispatcher = SimpleNamespace(
        pipeline=SimpleNamespace(lines=RiskLines(warn=0.3, alarm=0.5)),
        pending=[],
        wants_checkpoint="",
        risk=0.0,
        last_trouble_step=-1,
        judge_waiting=lambda: None,
    )
    checkpointer = SimpleNamespace(
        measure=lambda step, now: None,
        is_due=lambda step: False,
        is_free=lambda step: True,
        healthy_at=lambda step, last: None,
        next_look=lambda step: (34.0, math.inf),
    )
    boundary = Boundary(
        settings=settings,
        boundaries=boundaries,
        state=cast(Any, SimpleNamespace(capture=lambda **kinds: {})),
        held=cast(Any, SimpleNamespace(begin=lambda frames: None, lasting=dict)),
        snapshots=cast(Any, SimpleNamespace(take=lambda step, state, extras: 0.0)),
        checkpointer=cast(Any, checkpointer),
        dispatcher=cast(Any, dispatcher),
        tape_offset=lambda: 0,
        pure_loading=list,
        steps_recorded=lambda: 0,
        grads_matter=lambda: False,
        controls_state=dict,
        loss_under_way=lambda: None,
        hook_state=str,
        begin_files=lambda: 0,
        **others,
    )
    return boundary, dispatcher


def test_boundaries_with_nothing_to_do_are_passed_by() -> None:
    boundaries = BoundarySchedule()
    boundary, _ = boundary_of(boundaries)

    assert looked_at(boundary, boundaries, range(36)) == [0, 1, 11, 21, 31, 34, 35]


def test_who_asks_gets_the_next_boundary() -> None:
    boundaries = BoundarySchedule()
    boundary, _ = boundary_of(boundaries)
    looked_at(boundary, boundaries, range(5))

    boundaries.ask()

    assert looked_at(boundary, boundaries, range(5, 9)) == [5]


@pytest.mark.parametrize("late", ["signal", "action", "checkpoint"])
def test_what_comes_up_during_a_look_is_not_forgotten(late: str) -> None:
    boundaries = BoundarySchedule()
    boundary, dispatcher = boundary_of(boundaries)
    looked_at(boundary, boundaries, range(5))

    def come_up(step: int) -> tuple[float, float]:
        if late == "signal":
            boundary.leave = ("restart", "asked")
        elif late == "action":
            dispatcher.pending.append("an action")
        else:
            dispatcher.wants_checkpoint = "risk"
        boundaries.ask()
        return 34.0, math.inf

    boundary._checkpointer.next_look = come_up  # type: ignore[method-assign]
    boundary(11)

    assert boundaries.step <= 12
