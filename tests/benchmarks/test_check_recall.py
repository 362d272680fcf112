"""The planted mistakes are what the recall of `supervisor check` is measured with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.check_recall import FOLDER, measure
from supervisor.source_check.rules import ALL_RULES

FILE = """import torch
import torch.nn.functional as F

state = torch.load("a.pt", weights_only=False)  # planted: load-runs-code
other = torch.load("b.pt", weights_only=True)  # planted: {rule}
more = torch.load("c.pt", weights_only=False)
"""


def test_every_rule_has_a_planted_mistake_and_every_mark_is_a_rule() -> None:
    marks = [
        mark
        for path in FOLDER.rglob("*.py")
        for mark in re.findall(r"# planted: ([\w-]+)", path.read_text(encoding="utf-8"))
    ]

    assert len(marks) >= 60
    assert set(marks) == {rule.name for rule in ALL_RULES}


def test_a_finding_counts_for_one_mistake_only(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FILE.format(rule="load-runs-code"))

    measured = measure(tmp_path)

    assert measured.found == ["train.py:4: load-runs-code", "train.py:5: load-runs-code"]
    assert (measured.missed, measured.wrong) == ([], [])


def test_what_is_missed_and_what_is_wrong_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FILE.format(rule="eval-without-train"))

    measured = measure(tmp_path)

    assert measured.missed == ["train.py:5: eval-without-train"]
    assert measured.wrong == ["train.py:6: load-runs-code"]
    assert measured.recall == 0.5


@pytest.mark.parametrize("name", ["seen", "kept_aside", "held_out"])
def test_four_of_five_planted_mistakes_are_found_and_nothing_else(name: str) -> None:
    measured = measure(FOLDER / name)

    assert measured.recall >= 0.8
    assert measured.wrong == []


def test_the_same_code_without_its_mistakes_has_no_finding() -> None:
    assert measure(FOLDER / "held_out_twins").wrong == []
    twins = {path.name for path in (FOLDER / "held_out_twins").glob("*.py")}
    assert twins == {path.name for path in (FOLDER / "held_out").glob("*.py")}
