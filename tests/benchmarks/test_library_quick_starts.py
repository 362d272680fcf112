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


def test_a_row_tells_versions_the_healthy_run_and_both_kills() -> None:
    kills = (Kill("step 3", "exact", "same"), Kill("step 7", "start", "lines", "why"))
    verdict = Verdict("one", "same", "same", kills, torch="2.13.0", versions={"timm": "1.0"})

    lines = library_table([verdict]).splitlines()

    assert lines[2] == "| one | timm 1.0; 2.13.0 | same | exact | from the start; other lines |"
    assert lines[-1].endswith("2 kills, 1 exact and true, falsely called exact: none")
