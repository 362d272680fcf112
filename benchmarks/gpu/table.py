"""The rows of `python -m benchmarks.gpu` as a table in docs/gpu.md."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from benchmarks.page import DOCS

PAGE = DOCS / "gpu.md"


def table(found: dict[str, Any]) -> str:
    """What is not as it should be on which card; what came out alike at a point shares a line."""
    machine = found["machine"]
    facts = ", ".join(f"{key} {machine[key]}" for key in machine if key not in ("card", "date"))
    lines = [f"{machine['card']}, {machine['date']}: {facts}.", ""]
    lines += ["| point | what | found |", "| --- | --- | --- |"]
    alike: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    good = 0
    for point in found["points"]:
        for row in point["rows"]:
            good += row["good"] is True
            if row["good"] is False:
                alike[point["point"].replace("_", " "), row["found"]].append(row["what"])
    for (point, came), what in alike.items():
        lines.append("| " + " | ".join(map(_cell, (point, "; ".join(what), came))) + " |")
    return "\n".join([*lines, "", f"{good} further cases are as they should be."])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())
