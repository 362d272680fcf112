"""What came of foreign scripts as one table of libraries, in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.foreign.catalogue import SCRIPTS
from benchmarks.foreign.verdict import Verdict

_HEAD = (
    "| library | version | torch | healthy | exact after a kill | what to know |\n|" + 6 * " --- |"
)


def compatibility_table(verdicts: Iterable[Verdict]) -> str:
    """Returns a row for each repository whose scripts ran, and their sum.

    The repositories are checked out as they are on the day of the trial. So where no commit is
    recorded that day, the newest of a row, stands for their version.
    """
    home = {script.name: (script.repository, script.ranks) for script in SCRIPTS}
    by_home: defaultdict[tuple[str, int], list[Verdict]] = defaultdict(list)
    ran = [verdict for verdict in verdicts if verdict.healthy]
    for verdict in ran:
        by_home[home[verdict.name]].append(verdict)
    lines = [_HEAD]
    for repository, ranks in sorted(by_home):
        of_it = by_home[repository, ranks]
        title = repository if ranks == 1 else f"{repository}, {ranks} ranks"
        lines.append(_row(title, of_it, "; ".join(filter(None, map(_known, of_it)))))
    false = sum(verdict.is_false for verdict in ran)
    lines.append(_row("**all**", ran, f"falsely called exact: {false or 'none'}"))
    return "\n".join(lines)


def _row(title: str, verdicts: list[Verdict], known: str) -> str:
    kills = [kill for verdict in verdicts for kill in verdict.struck]
    exact = sum(kill.is_exact and kill.true == "same" for kill in kills)
    healthy = sum(verdict.is_healthy for verdict in verdicts)
    newest = max(verdicts, key=lambda verdict: verdict.date)
    torches = "/".join(sorted({verdict.torch for verdict in verdicts}))
    counts = f"{healthy}/{len(verdicts)} | {exact}/{len(kills)}"
    return f"| {title} | {newest.version or newest.date} | {torches} | {counts} | {known} |"


def _known(verdict: Verdict) -> str:
    """What was not exact of one script; empty if all was."""
    if verdict.is_exact:
        return ""
    if not verdict.struck:
        return f"{verdict.name}: never struck"
    found = {
        (_said(kill.said), "" if kill.true == "same" else ", another end")
        for kill in verdict.struck
        if not kill.is_exact or kill.true != "same"
    }
    return f"{verdict.name}: {', '.join(said + end for said, end in sorted(found))}"


def _said(said: str) -> str:
    if "approximate" in said:
        return "approximate"
    return "from the start" if "start" in said else said
