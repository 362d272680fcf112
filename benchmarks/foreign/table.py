"""The tables of what came of foreign scripts, in Markdown."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from benchmarks.foreign.categories import category_of, in_order
from benchmarks.foreign.verdict import Verdict

_LETTERS = 160
"""Of a reason in the long table."""


def category_table(verdicts: Iterable[Verdict]) -> str:
    """Returns the short table: a row for each category of scripts that ran, and their sum."""
    by_category: defaultdict[str, list[Verdict]] = defaultdict(list)
    ran = [verdict for verdict in verdicts if verdict.healthy]
    for verdict in ran:
        by_category[category_of(verdict.name)].append(verdict)
    head = "category | scripts | healthy identical | kills | exact and true"
    lines = [
        f"| {head} | approximate or from the start | **false exact** |",
        "| --- |" + 6 * " ---: |",
    ]
    for category in sorted(by_category, key=in_order):
        lines.append(_counts(category, by_category[category]))
    lines.append(_counts("**all**", ran))
    return "\n".join(lines)


def script_table(verdicts: Iterable[Verdict]) -> str:
    """Returns the long table: a row for each script, the kills in words."""
    lines = ["| script | date | torch | healthy | killed: what was said, what was true |"]
    lines.append("| --- | --- | --- | --- | --- |")
    chosen = [verdict for verdict in verdicts if verdict.healthy]
    for verdict in sorted(chosen, key=lambda v: (in_order(category_of(v.name)), v.name)):
        told = [f"{k.place}: {k.said}, {_plain(k.true)}{_reason(k.reason)}" for k in verdict.struck]
        if len(verdict.struck) < len(verdict.kills):
            told.append(f"{len(verdict.kills) - len(verdict.struck)} did not strike")
        healthy = _plain(verdict.healthy) + (", treated" if verdict.treatments else "")
        if verdict.plain != "same":
            healthy += f" ({_plain(verdict.plain)} in plain python)"
        ran = f"{verdict.date} | {verdict.torch}"
        lines.append(f"| {verdict.name} | {ran} | {healthy} | {'; '.join(told)} |")
    return "\n".join(lines)


def _counts(name: str, verdicts: list[Verdict]) -> str:
    kills = [kill for verdict in verdicts for kill in verdict.struck]
    exact = [kill for kill in kills if kill.is_exact]
    true = sum(kill.true == "same" for kill in exact)
    healthy = sum(verdict.is_healthy for verdict in verdicts)
    row = (len(verdicts), healthy, len(kills), true, len(kills) - len(exact), len(exact) - true)
    return " | ".join([f"| {name}", *map(str, row)]) + " |"


def _reason(text: str) -> str:
    return f" ({_plain(text)})" if text else ""


def _plain(text: str) -> str:
    """Without what Markdown would read as its own."""
    text = re.sub(r"\s+", " ", text).replace("|", "/").replace("<", "").replace(">", "")
    return text if len(text) <= _LETTERS else text[: _LETTERS - 3] + "..."
