"""What a rank does alone in a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.storage.steps.own_times import WINDOW_STEPS, OwnTimes, read_own_times
from supervisor.worker.live import own_time
from supervisor.worker.live.own_time import OwnTime


def _steps(own: OwnTime, clock: list[float], steps: range, alone_s: float) -> None:
    for step in steps:
        clock[0] += alone_s
        own.backward_begins(step)
        clock[0] += 5.0  # waits for the others
        own.update_ended()


def test_time_in_backward_and_update_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(own_time.time, "perf_counter", lambda: clock[0])
    own = OwnTime(OwnTimes(tmp_path / "rank_0.steps"))

    _steps(own, clock, range(WINDOW_STEPS), 1.0)  # the first has no update before it: no window
    _steps(own, clock, range(WINDOW_STEPS, 2 * WINDOW_STEPS), 0.5)
    _steps(own, clock, range(2 * WINDOW_STEPS, 3 * WINDOW_STEPS + 1), 0.25)

    assert read_own_times(tmp_path / "rank_0.steps") == {
        WINDOW_STEPS: 0.5,
        2 * WINDOW_STEPS: 0.25,
    }
    assert (tmp_path / "rank_0.steps.own").stat().st_mode & 0o077 == 0


def test_one_process_writes_nothing(tmp_path: Path) -> None:
    clock = [0.0]

    _steps(OwnTime(None), clock, range(3 * WINDOW_STEPS), 1.0)

    assert list(tmp_path.iterdir()) == []
