"""``python -m benchmarks.measured``: makes the table of docs/measured.md.

Two rows are counted in what benchmarks left with ``--json`` in this repository (public scripts, a
GPU). All others are in measured.json, one object a figure: whoever measures one again changes its
value, date and version there, and runs this.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.foreign.verdict import Verdict, read_verdicts
from benchmarks.page import DOCS, put_into

HERE = Path(__file__).parent
PAGE = DOCS / "measured.md"
COLUMNS = ("figure", "goal", "value", "date", "command", "version")
SHOWN = COLUMNS[:-1]
"""On the page; the commit that was measured (or, with ``≤``, that wrote it down) stays here."""


def measured_table() -> str:
    """Returns all rows, in the order of measured.json; a name alone stands for a counted row."""
    counted = {
        "foreign": foreign_row(list(read_verdicts(HERE / "foreign" / "results.json").values())),
        "gpu": gpu_row(json.loads((HERE / "gpu" / "h100.json").read_text())),
    }
    lines = ["| " + " | ".join(SHOWN) + " |", "|" + len(SHOWN) * " --- |"]
    for given in json.loads((HERE / "measured.json").read_text(encoding="utf-8")):
        row = counted[given] if isinstance(given, str) else given
        lines.append("| " + " | ".join(row[name] for name in SHOWN) + " |")
    return "\n".join(lines)


def foreign_row(verdicts: list[Verdict]) -> dict[str, str]:
    """Public scripts: resumes by what they were called, and what was true."""
    ran = [verdict for verdict in verdicts if verdict.healthy]
    kills = [kill for verdict in ran for kill in verdict.struck]
    true = sum(kill.is_exact and not kill.is_false for kill in kills)
    false = sum(kill.is_false for kill in kills)
    healthy = sum(verdict.is_healthy for verdict in ran)
    return {
        "figure": "public scripts, unmodified, killed ([one by one](foreign.md))",
        "goal": "none falsely exact",
        "value": f"{healthy} of {len(ran)} scripts healthy; {len(kills)} kills: {true} exact and "
        f"true, {len(kills) - true - false} approximate or from the start, **{false} false**",
        "date": max(verdict.date for verdict in ran),
        "command": "`benchmarks.foreign CHECKOUTS`",
        "version": "several",
    }


def gpu_row(found: dict[str, Any]) -> dict[str, str]:
    """Step time on one GPU over plain python: step, difference, quartiles."""
    (point,) = (point for point in found["points"] if point["point"] == "overhead")
    missed = "" if all(row["good"] for row in point["rows"]) else "**missed:** "
    return {
        "figure": f"step time over plain python, {found['machine']['card']} ([more](gpu.md))",
        "goal": "<= 5 %, <= 2 %",
        "value": missed + "; ".join(row["found"] for row in point["rows"]),
        "date": found["machine"]["date"],
        "command": "`benchmarks.gpu overhead`",
        "version": f"torch {found['machine']['torch']}",
    }


if __name__ == "__main__":
    put_into(PAGE, measured_table())
