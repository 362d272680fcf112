"""Each mistake is told in time, at its line, and its healthy twin is not accused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.mistakes import alerts_of, judge_pairs

HERE = Path(__file__).parent
PAIRS = HERE / "pairs"
with (PAIRS / "LABELS.tsv").open() as _file:
    KINDS = [
        row["file"].removesuffix("_bad.py")
        for row in csv.DictReader(_file, delimiter="\t")
        if row["label"] == "bad" and row["ranks"] == "1"
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_mistake_is_told_and_its_healthy_twin_is_not_accused(kind: str) -> None:
    (row,) = judge_pairs(PAIRS, only=kind)

    assert len(row["told"]) == 1, row
    assert row["in_time"], row
    assert row["named"], row
    assert row["place_right"], row
    assert row["twin_told"] == [], row


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", sorted((HERE / "healthy").glob("*.py")), ids=lambda p: p.stem)
def test_a_healthy_script_that_looks_guilty_is_not_accused(script: Path) -> None:
    assert alerts_of(script) == []


@pytest.mark.filterwarnings("ignore")
def test_what_may_be_meant_is_asked_and_not_told() -> None:
    script = HERE / "healthy" / "fixed_random_layer.py"

    (asked,) = alerts_of(script, category="question")

    assert asked[0] == "trained_by_nothing"
    assert asked[3].endswith(f"{script.name}:10")
