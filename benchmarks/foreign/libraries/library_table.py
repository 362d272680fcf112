"""What came of the quick starts of libraries, as a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.foreign.verdict import Kill, Verdict

_HEAD = "| library | healthy | first kill | second kill |\n|" + 4 * " --- |"
_KILLS = 2


def library_table(verdicts: Iterable[Verdict], *, with_head: bool = True) -> str:
    """Returns a row for each library, and with a head the sums below them.

    Those whose every kill was resumed exactly share one row. Versions are in results.json.
    """
    ran = sorted(verdicts, key=lambda verdict: _libraries(verdict).lower())
    if not with_head:
        return "\n".join(f"{verdict.name} {_row(verdict)}" for verdict in ran)
    exact = [v for v in ran if v.is_healthy and v.is_exact and len(v.struck) == _KILLS]
    rows = [_row(verdict) for verdict in ran if verdict not in exact]
    if exact:
        names = "; ".join(dict.fromkeys(map(_libraries, exact)))
        rows.append(f"| {names} | same | exact | exact |")
    kills = [kill for verdict in ran for kill in verdict.struck]
    true = sum(kill.is_exact and kill.true == "same" for kill in kills)
    false = sum(kill.is_false for kill in kills)
    healthy = sum(verdict.is_healthy for verdict in ran)
    total = (
        f"{len(ran)} scripts, {healthy} healthy as plain python; {len(kills)} kills, {true} "
        f"exact and true, falsely called exact: {false or 'none'}"
    )
    return "\n".join([_HEAD, *rows, "", total])


def _libraries(verdict: Verdict) -> str:
    return ", ".join(verdict.versions) or verdict.name


def _row(verdict: Verdict) -> str:
    healthy = verdict.healthy or verdict.plain
    if verdict.treatments:
        healthy += f", treated {verdict.treatments}"
    told = [_told(kill) for kill in verdict.kills] + ["not struck"] * _KILLS
    return f"| {' | '.join((_libraries(verdict), healthy, *told[:_KILLS]))} |"


def _told(kill: Kill) -> str:
    if not kill.said:
        return "not struck"
    said = {"start": "from the start"}.get(kill.said, kill.said)
    return said if kill.true == "same" else f"{said}; other {kill.true}"
