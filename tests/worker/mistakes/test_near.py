"""Pairs of near kinds: other optimizers, models and styles of loop."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.mistakes import judge_pairs

FOLDERS = [Path(__file__).parent / name for name in ("near", "kinds")]


def bad_ones(folder: Path) -> list[tuple[Path, str]]:
    with (folder / "LABELS.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["label"] != "ok"]
    return [(folder, row["file"].rpartition("_")[0]) for row in rows if row["ranks"] == "1"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("folder", "kind"),
    [pytest.param(*each, id=each[1]) for folder in FOLDERS for each in bad_ones(folder)],
)
def test_a_mistake_is_told_and_its_healthy_twin_is_not_accused(folder: Path, kind: str) -> None:
    (row,) = judge_pairs(folder, only=kind)

    assert len(row["told"]) == 1, row
    assert row["in_time"], row
    assert row["named"], row
    assert row["place_right"], row
    assert row["twin_told"] == [], row
