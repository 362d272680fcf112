"""The rows of `python -m benchmarks.gpu` as a table in docs/gpu.md."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"


def table(found: dict[str, Any]) -> str:
    """What was tried on which card; what came out alike at a point shares a line."""
    machine = found["machine"]
    facts = ", ".join(f"{key} {machine[key]}" for key in machine if key not in ("card", "date"))
    lines = [f"{machine['card']}, {machine['date']}: {facts}.", ""]
    lines += ["| point | what | found | |", "| --- | --- | --- | --- |"]
    alike: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for point in found["points"]:
        for row in point["rows"]:
            mark = {True: "ok", False: "**no**", None: ""}[row["good"]]
            alike[point["point"].replace("_", " "), row["found"], mark].append(row["what"])
    for (point, came, mark), what in alike.items():
        lines.append("| " + " | ".join(map(_cell, (point, "; ".join(what), came, mark))) + " |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())


def put_into(page: Path, found: dict[str, Any]) -> None:
    """Replaces the table between the marks of `page`."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")
