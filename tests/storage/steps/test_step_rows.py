"""Observed values beyond a row's slots, within their budget of disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.storage.steps.step_rows import ENTRY, MoreValues, more_path, read_more


@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_stays_below_its_budget_and_reaches_over_the_whole_run(
    tmp_path: Path, restarts: bool
) -> None:
    budget = 400 * ENTRY.size
    said: list[int] = []
    path = tmp_path / "rank_0.steps"

    values = MoreValues(path, 0, max_bytes=budget, on_thinned=said.append)
    for row in range(2000):
        if restarts and row == 700:
            values.close()
            values = MoreValues(path, row, max_bytes=budget, on_thinned=said.append)
        values.append(row, [(16, float(row)), (17, 0.5)])
    values.close()

    kept = [row for row, slot, _ in read_more(path, 0, 2000) if slot == 16]
    assert more_path(path).stat().st_size < budget
    assert kept[:100] == list(range(100))
    assert kept[-1] > 1500
    assert said[0] == 4
    assert restarts or said == sorted(set(said))


def test_without_a_budget_every_row_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    values = MoreValues(path, 0)

    for row in range(500):
        values.append(row, [(16, 1.0)])

    values.close()
    assert len(read_more(path, 0, 500)) == 500


def test_values_of_odd_rows_alone_are_thinned_and_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    values = MoreValues(path, 0, max_bytes=100 * ENTRY.size)

    for row in range(3, 4000, 4):
        values.append(row, [(16, 1.0)])

    values.close()
    assert read_more(path, 0, 4000)[-1][0] > 3000


def test_a_budget_of_nothing_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.steps"
    values = MoreValues(path, 0, max_bytes=0)

    values.append(0, [(16, 1.0)])

    values.close()
    assert read_more(path, 0, 1) == []
