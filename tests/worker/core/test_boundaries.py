"""When the next boundary is needed."""

from __future__ import annotations

import pytest

from supervisor.worker.core import boundaries
from supervisor.worker.core.boundaries import BoundarySchedule, StepTimes


def test_who_asks_gets_the_next_boundary() -> None:
    schedule = BoundarySchedule()
    schedule.plan(50.0, 1e9)

    schedule.ask_for_checkpoint("risk")

    assert (schedule.step, schedule.checkpoint_reason) == (0.0, "risk")


def test_a_signal_that_comes_while_the_next_boundary_is_planned_is_not_forgotten() -> None:
    schedule = BoundarySchedule()
    schedule.ask_to_leave("interrupted", "SIGTERM")

    schedule.plan(50.0, 1e9)

    assert schedule.step == 0.0
    assert not schedule.is_restarting


def test_slow_first_steps_are_soon_not_usual_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    times, now = StepTimes(), 0.0
    monkeypatch.setattr(boundaries.time, "monotonic", lambda: now)
    for step, took in ((0, 1.0), (1, 9.0), (11, 0.05)):  # nine seconds of compiling
        now += took
        times.at_boundary(step)

    assert times.usual_s == pytest.approx(0.005)
    now += 0.0045 * 10
    times.at_boundary(21)
    assert times.usual_s == pytest.approx(0.00485)
