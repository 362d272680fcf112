"""What came of foreign scripts as one table of libraries, in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.foreign.catalogue import SCRIPTS
from benchmarks.foreign.verdict import Verdict

_HEAD = "| library | healthy | exact after a kill | what to know |\n|" + 4 * " --- |"


_SHARED = {
    (): "every kill resumed exactly",
    ("from the start",): "the other kills: from the start",
}


def compatibility_table(verdicts: Iterable[Verdict]) -> str:
    """Returns a row for each repository whose scripts ran, and their sum.

    Those whose every kill was resumed exactly share one row, and those that else began from the
    start another one. Versions are in results.json.
    """
    home = {script.name: (script.repository, script.ranks) for script in SCRIPTS}
    by_home: defaultdict[tuple[str, int], list[Verdict]] = defaultdict(list)
    ran = [verdict for verdict in verdicts if verdict.healthy]
    for verdict in ran:
        by_home[home[verdict.name]].append(verdict)
    rows = []
    shared: dict[str, list[tuple[str, list[Verdict]]]] = {row: [] for row in _SHARED.values()}
    for repository, ranks in sorted(by_home):
        of_it = by_home[repository, ranks]
        title = repository if ranks == 1 else f"{repository}, {ranks} ranks"
        facts = tuple({fact for verdict in of_it for fact in _facts(verdict)})
        if facts in _SHARED:
            shared[_SHARED[facts]].append((title, of_it))
            continue
        known = ((verdict.name, _facts(verdict)) for verdict in of_it)
        rows.append(_row(title, of_it, "; ".join(f"{n}: {', '.join(f)}" for n, f in known if f)))
    for known_of_all, homes in reversed(shared.items()):
        if homes:
            of_all = [verdict for _, of_it in homes for verdict in of_it]
            rows.append(_row("; ".join(title for title, _ in homes), of_all, known_of_all))
    false = sum(verdict.is_false for verdict in ran)
    total = _row("**all**", ran, f"falsely called exact: {false or 'none'}")
    return "\n".join([_HEAD, *rows, total])


def _row(title: str, verdicts: list[Verdict], known: str) -> str:
    kills = [kill for verdict in verdicts for kill in verdict.struck]
    exact = sum(kill.is_exact and kill.true == "same" for kill in kills)
    healthy = sum(verdict.is_healthy for verdict in verdicts)
    return f"| {title} | {healthy}/{len(verdicts)} | {exact}/{len(kills)} | {known} |"


def _facts(verdict: Verdict) -> list[str]:
    """What was not exact of one script; nothing if all was."""
    if verdict.is_exact:
        return []
    if not verdict.struck:
        return ["never struck"]
    found = {
        _said(kill.said) + ("" if kill.true == "same" else ", another end")
        for kill in verdict.struck
        if not kill.is_exact or kill.true != "same"
    }
    return sorted(found)


def _said(said: str) -> str:
    if "approximate" in said:
        return "approximate"
    return "from the start" if "start" in said else said
