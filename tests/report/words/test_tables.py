"""The page and the text show the same tables."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from supervisor.report.gathering import gather
from supervisor.report.words.render import render_html, render_markdown
from supervisor.report.words.tables import build_tables
from tests.report import synthetic_run

Rows = list[list[str]]


class TablesOfPage(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[Rows] = []
        self._is_in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._is_in_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_in_cell:
            self.tables[-1][-1][-1] += data


def tables_of_text(text: str) -> list[Rows]:
    """All tables of a Markdown text, without the row of dashes."""
    found: list[Rows] = [[]]
    for line in text.splitlines():
        if not line.startswith("|"):
            found.append([])
        elif not re.fullmatch(r"[| :-]+", line):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            found[-1].append([re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells])
    return [rows for rows in found if rows]


def test_page_and_text_have_the_same_tables_in_the_same_order(tmp_path: Path) -> None:
    report = gather(synthetic_run.gave_up(tmp_path / "run"))

    page = TablesOfPage(render_html(report)).tables
    text = tables_of_text(render_markdown(report))

    assert len(page) >= 4
    assert text[1:] == page  # the first one of the text is what the page's header shows


def test_each_row_has_a_cell_for_each_column(tmp_path: Path) -> None:
    report = gather(synthetic_run.treated(tmp_path / "run"))

    tables = build_tables(report, None)

    assert tables["tried"].rows
    assert all(len(row) == len(made.columns) for made in tables.values() for row in made.rows)


def test_what_the_time_went_into_adds_up_to_all_of_it(tmp_path: Path) -> None:
    report = gather(synthetic_run.treated(tmp_path / "run"))

    shares = [row[2] for row in build_tables(report, None)["cost"].rows]

    assert abs(sum(float(share.split()[0]) for share in shares) - 100) < 2
