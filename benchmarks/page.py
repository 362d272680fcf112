"""The part of a page of docs/ that a command makes, between two marks."""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
DOCS = Path(__file__).parents[1] / "docs"


def shown(page: Path) -> str:
    """Returns what is between the marks now."""
    return page.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def put_into(page: Path, made: str) -> None:
    """Replaces what is between the marks."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")
