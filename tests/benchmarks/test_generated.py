"""Generated programs: `benchmarks.generated` makes what it says, and sees what is not the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.generated.__main__ import recipe_of
from benchmarks.generated.comparison import different_files, same_lines
from benchmarks.generated.program import PARTS, PLACES, Recipe, simpler, text


@given(seed=st.integers(0, 9), number=st.integers(0, 5000))
def test_every_number_gives_one_program(seed: int, number: int) -> None:
    script = text(recipe_of(seed, number))

    ast.parse(script)
    assert script == text(recipe_of(seed, number))
    assert "$" not in script


@pytest.mark.parametrize("place", PLACES)
def test_every_part_fits_into_every_place(place: str) -> None:
    for name in PARTS:
        ast.parse(text(Recipe(place=place, parts=(name,))))


def test_a_simpler_recipe_lacks_one_thing() -> None:
    recipe = Recipe(place="trainer", parts=("average meter", "log that stays open"), every=1)

    found = list(simpler(recipe))

    assert [len(less.parts) for less in found] == [1, 1, 2, 2]
    assert Recipe() not in found


@pytest.mark.parametrize(
    ("told", "is_same"),
    [
        ("a\nb\nc\nd\n", True),
        ("a\nb\nc\nb\nc\nd\n", True),  # killed behind c, from the checkpoint before b
        ("a\nb\nb\nc\nc\nd\n", True),  # killed twice
        ("a\nb\nc\n", False),
        ("a\nc\nd\n", False),
        ("a\nb\nx\nc\nd\n", False),
        ("a\nb\nc\nd\nd\nd\n", True),
    ],
)
def test_lines_may_come_again_behind_a_kill_and_nothing_else(told: str, is_same: bool) -> None:
    assert same_lines("a\nb\nc\nd\n", told) is is_same


def test_files_that_differ_or_are_only_on_one_side_are_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "deep").mkdir(parents=True)
        (folder / "script.py").write_text(folder.name)
        (folder / "same.txt").write_text("same")
    (one / "deep" / "log.txt").write_text("1")
    (other / "deep" / "log.txt").write_text("2")
    (other / "more.txt").write_text("")

    assert different_files(one, other) == ["deep/log.txt", "more.txt"]
