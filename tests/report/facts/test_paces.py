"""A rank that is slow by itself is told from those that wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.report.facts.attempts import RankPace, find_paces
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import OwnTimes


def _written(folder: Path, *ranks: list[float]) -> Path:
    rundir = RunDirectory(folder)
    rundir.make(rundir.steps(0).parent)
    for rank, medians in enumerate(ranks):
        times = OwnTimes(rundir.steps(rank))
        for window, median in enumerate(medians):
            times.append(64 * window, median)
    return folder


def test_three_slow_windows_in_a_row_make_a_slow_rank(tmp_path: Path) -> None:
    fast, slow = [1.0] * 6, [1.0, 2.0, 1.0, 2.0, 2.0, 2.0]

    first, second = find_paces(_written(tmp_path, fast, slow), 2)

    assert first == RankPace(typical=1.0)
    assert second.slow_from == 64 * 3
    assert second.typical == pytest.approx(0.5)


def test_windows_that_not_all_ranks_have_are_not_compared(tmp_path: Path) -> None:
    paces = find_paces(_written(tmp_path, [1.0] * 4, [9.0] * 2, [1.0] * 4), 3)

    assert [pace.slow_from for pace in paces] == [None] * 3


def test_of_a_window_that_was_repeated_the_last_time_counts(tmp_path: Path) -> None:
    folder = _written(tmp_path, [1.0] * 3, [4.0] * 3)
    for window in range(3):
        OwnTimes(RunDirectory(folder).steps(1)).append(64 * window, 1.0)

    assert find_paces(folder, 2)[1] == RankPace(typical=1.0)


def test_a_run_without_such_times_has_no_paces(tmp_path: Path) -> None:
    assert find_paces(tmp_path, 2) == [RankPace(), RankPace()]
