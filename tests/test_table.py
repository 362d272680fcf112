from __future__ import annotations

import ast
from pathlib import Path

import pytest

from supervisor.table import print_table, table

ROWS = [("runs/a", "completed"), ("runs/another", "running")]


def test_columns_are_as_wide_as_needed() -> None:
    assert table(("RUN", "STATE"), ROWS) == (
        "RUN           STATE\nruns/a        completed\nruns/another  running"
    )
    assert table((), ROWS, indent=2) == "  runs/a        completed\n  runs/another  running"
    assert table(("A", "B"), []) == "A  B"


def test_a_text_is_shown_as_it_is_and_cannot_steer_the_terminal() -> None:
    rows = [("[red]no markup[/red] :smile:", "1"), ("\x1b[2J\n", "2"), ("学習", "3")]

    shown = table(("NAME", "NUMBER"), rows).splitlines()

    assert shown[1] == "[red]no markup[/red] :smile:  1"
    assert shown[2].split() == [r"\x1b[2J\n", "2"]
    assert shown[3].index("3") == shown[1].index("1") - 2  # each of its signs takes two columns


def test_without_a_terminal_nothing_is_cut_or_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = [("a" * 300, "b c " * 100)]

    print_table(("LONG", "LONGER"), rows, shortened=("LONG",))

    assert capsys.readouterr().out.splitlines()[1] == f"{'a' * 300}  {'b c ' * 100}".rstrip()


def test_a_narrow_terminal_shows_the_ends_of_what_may_be_shortened(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("runs/" + "x" * 50 + "-the-end", "completed")]

    print_table(("RUN", "STATE"), rows, shortened=("RUN",))

    _, line = capsys.readouterr().out.splitlines()
    assert len(line.rstrip()) <= 40
    assert line.startswith("…")
    assert line.split() == [line.split()[0], "completed"]
    assert line.split()[0].endswith("-the-end")


def test_a_narrow_terminal_wraps_other_cells_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "COLUMNS": "30",
        "LINES": "25",
        "FORCE_COLOR": "1",
        "TERM": "dumb",
    }.items():  # what rich takes for a terminal without colours
        monkeypatch.setenv(name, value)

    print_table(("CHECK", "DETAIL"), [("disk", "one two three four five six seven eight")])

    shown = capsys.readouterr().out
    words = shown.split()
    assert all(len(line.rstrip()) <= 30 for line in shown.splitlines())
    assert words == [
        "CHECK",
        "DETAIL",
        "disk",
        *["one", "two", "three", "four", "five", "six", "seven", "eight"],
    ]


def test_columns_are_aligned_in_one_place_only() -> None:
    """No second table code: nothing else pads texts to columns."""
    package = Path(__file__).parents[1] / "supervisor"
    padding = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("ljust", "rjust", "center")
    }

    assert padding == set()
