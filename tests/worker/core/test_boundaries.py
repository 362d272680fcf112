"""When the next boundary is needed."""

from __future__ import annotations

from supervisor.worker.core.boundaries import BoundarySchedule


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
