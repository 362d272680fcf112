from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.analysis.backtest.columns import Cadence
from supervisor.analysis.backtest.trace import read_trace


def breaks(steps: list[int]) -> list[int]:
    cadence = Cadence()
    return [step for step in steps if cadence.breaks_at(step)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([*range(20), *range(500, 520)], [500]),  # rows are missing
        ([*range(20), *range(5, 40)], [5]),  # resumed from an earlier step
        ([*range(20), *range(119, 5000, 100)], [119]),  # every hundredth from there on
        ([*range(0, 2000, 100), *range(1901, 1950)], [1901]),
        ([*range(20), 21, 23, *range(24, 40)], []),  # single rows are missing
        ([7 * step + step % 3 for step in range(50)], []),  # never had a cadence
    ],
)
def test_gaps_returns_and_other_distances_break_a_cadence(
    steps: list[int], expected: list[int]
) -> None:
    assert breaks(steps) == expected


def test_a_row_behind_a_gap_counts_as_announced(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    steps = [*range(30), *range(4000, 4030)]
    log.write_text("step,loss\n" + "".join(f"{step},1.0\n" for step in steps))

    assert [record.step for record in read_trace(log) if record.announced] == [4000]
