"""Pairs of near kinds: other optimizers, models and styles of loop."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.mistakes import judge_pairs

NEAR = Path(__file__).parent / "near"
with (NEAR / "LABELS.tsv").open() as _file:
    KINDS = [
        row["file"].removesuffix("_bad.py")
        for row in csv.DictReader(_file, delimiter="\t")
        if row["label"] == "bad"
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_is_told_and_its_healthy_twin_is_not_accused(kind: str) -> None:
    (row,) = judge_pairs(NEAR, only=kind)

    assert len(row["told"]) == 1, row
    assert row["in_time"], row
    assert row["named"], row
    assert row["place_right"], row
    assert row["twin_told"] == [], row
