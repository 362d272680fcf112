"""The table of docs/versions.md, from what pytest writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import versions_table
from benchmarks.versions_table import PAGE, row, with_row

RESULTS = """<?xml version="1.0"?><testsuites><testsuite name="pytest" errors="1" failures="1"
 skipped="2" tests="7" timestamp="2026-11-27T01:02:03.5+00:00">
<testcase name="test_fine"/><testcase name="test_worse[a-1]"><failure message="x"/></testcase>
<testcase name="test_later"><skipped message="no library"/></testcase>
<testcase name="test_broken"><error message="y"/></testcase></testsuite></testsuites>"""
EMPTY = "# Versions\n\n| date | Python |\n| --- | --- |\n\nText.\n"


def test_a_row_counts_and_names_what_failed() -> None:
    assert row(RESULTS, "exactness", "3.12.1", "2.14.1") == (
        "| 2026-11-27 | 3.12.1 | 2.14.1 | exactness | 3 | 2 | 2 | `test_broken`, `test_worse` |"
    )


def test_a_row_takes_the_place_of_the_same_python_and_they_are_in_order() -> None:
    page = EMPTY
    for python in ("3.9.1", "3.13.0", "3.12.1", "3.12.4"):
        page = with_row(page, row(RESULTS, "exactness", python, "2.14.1"))

    assert re.findall(r"2026-11-27 \| ([\d.]+)", page) == ["3.9.1", "3.12.4", "3.13.0"]
    assert page.startswith("# Versions\n\n| date | Python |\n| --- | --- |\n| 2026")
    assert page.endswith("|\n\nText.\n")


def test_failures_are_an_exit_code_and_skipped_tests_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, results = tmp_path / "versions.md", tmp_path / "results.xml"
    page.write_text(PAGE.read_text())
    monkeypatch.setattr(versions_table, "PAGE", page)
    results.write_text(RESULTS)
    assert versions_table.main(results, "whole suite") == 1
    results.write_text(re.sub(r'(errors|failures)="1"', r'\1="0"', RESULTS))

    assert versions_table.main(results, "whole suite") == 0
    assert "| whole suite | 5 | 0 | 2 |" in page.read_text()
