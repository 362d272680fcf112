"""What came of the quick starts of libraries, as a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.foreign.verdict import Kill, Verdict

_HEAD = "| script | library, torch | healthy | first kill | second kill |\n|" + 5 * " --- |"


def library_table(verdicts: Iterable[Verdict], *, with_head: bool = True) -> str:
    """Returns a row for each script, and with a head the sums below them."""
    ran = sorted(verdicts, key=lambda verdict: verdict.name)
    rows = [_row(verdict) for verdict in ran]
    if not with_head:
        return "\n".join(rows)
    kills = [kill for verdict in ran for kill in verdict.struck]
    exact = sum(kill.is_exact and kill.true == "same" for kill in kills)
    false = sum(kill.is_false for kill in kills)
    healthy = sum(verdict.is_healthy for verdict in ran)
    total = (
        f"{len(ran)} scripts, {healthy} healthy as plain python; {len(kills)} kills, {exact} "
        f"exact and true, falsely called exact: {false or 'none'}"
    )
    return "\n".join([_HEAD, *rows, "", total])


def _row(verdict: Verdict) -> str:
    libraries = ", ".join(f"{name} {number}" for name, number in verdict.versions.items())
    healthy = verdict.healthy or verdict.plain
    if verdict.treatments:
        healthy += f", treated {verdict.treatments}"
    kills = [_told(kill) for kill in verdict.kills] + ["not struck"] * (2 - len(verdict.kills))
    cells = (verdict.name, f"{libraries}; {verdict.torch}", healthy, *kills)
    return f"| {' | '.join(cells)} |"


def _told(kill: Kill) -> str:
    if not kill.said:
        return "not struck"
    said = {"start": "from the start"}.get(kill.said, kill.said)
    return said if kill.true == "same" else f"{said}; other {kill.true}"
