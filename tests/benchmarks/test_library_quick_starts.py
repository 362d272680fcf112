"""Quick starts of libraries: each is in the list, and its row says what came of it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.foreign.libraries import __main__ as libraries
from benchmarks.foreign.libraries.library_table import library_table
from benchmarks.foreign.verdict import Kill, Verdict, read_verdicts
from benchmarks.page import DOCS

FOLDER = Path(libraries.__file__).parent / "quick_starts"


def test_each_quick_start_is_in_the_list() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(libraries.QUICK_STARTS)


def test_the_page_shows_the_results_that_are_kept() -> None:
    made = library_table(read_verdicts(FOLDER.parent / "results.json").values())

    assert made in (DOCS / "foreign.md").read_text()


def test_libraries_of_which_every_kill_was_exact_share_a_row() -> None:
    exact = (Kill("step 3", "exact", "same"), Kill("step 7", "exact", "same"))
    other = (Kill("step 3", "exact", "same"), Kill("step 7", "start", "lines", "why"))
    verdicts = [
        Verdict(name, "same", "same", kills, versions={library: "1.0"})
        for name, library, kills in (
            ("one", "timm", exact),
            ("two", "kornia", exact),
            ("three", "wandb", other),
        )
    ]

    lines = library_table(verdicts).splitlines()

    assert lines[2] == "| wandb | same | exact | from the start; other lines |"
    assert lines[3] == "| kornia; timm | same | exact | exact |"
    assert lines[-1].endswith("6 kills, 5 exact and true, falsely called exact: none")
