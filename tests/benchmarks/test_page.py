"""The part of a page that a command makes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.page import BEGIN, END, put_into, shown


def test_what_is_made_takes_the_place_of_the_old_and_of_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    put_into(page, "| new |")

    assert shown(page) == "| new |"
    assert page.read_text() == f"before\n{BEGIN}\n| new |\n{END}\nafter\n"
