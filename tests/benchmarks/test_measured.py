"""The table of docs/measured.md is what its command makes."""

from __future__ import annotations

import json

from benchmarks import measured
from benchmarks.foreign.verdict import Kill, Verdict
from benchmarks.measured import COLUMNS, PAGE, foreign_row, gpu_row, measured_table
from benchmarks.page import shown


def test_the_page_shows_the_table_of_its_command() -> None:
    assert shown(PAGE) == measured_table()


def test_every_figure_has_its_goal_date_command_and_version() -> None:
    rows = json.loads((measured.HERE / "measured.json").read_text())

    assert [row for row in rows if not isinstance(row, str) and set(row) != set(COLUMNS)] == []
    assert [row for row in rows if not isinstance(row, str) and not all(row.values())] == []


def test_a_false_exact_is_counted_as_such() -> None:
    true, false = Kill("step 3", "exact", "same"), Kill("step 4", "exact", "weights")
    start = Kill("step 5", "start", "same")
    found = [Verdict("a", "same", "same", (true, false, start), date="day"), Verdict("b", "exit 1")]

    row = foreign_row(found)

    assert row["value"] == (
        "1 of 1 scripts healthy; 3 kills: 1 exact and true, 1 approximate or from the start, "
        "**1 false**"
    )


def test_the_cost_on_a_gpu_is_what_its_benchmark_found() -> None:
    rows = [{"found": "6 ms +20 %", "good": False}, {"found": "17 ms +1 %", "good": True}]
    points = [{"point": "kills", "rows": []}, {"point": "overhead", "rows": rows}]
    machine = {"card": "C", "date": "D", "torch": "2"}

    row = gpu_row({"machine": machine, "points": points})

    assert row["value"] == "**missed:** 6 ms +20 %; 17 ms +1 %"
