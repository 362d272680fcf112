"""A comparison as a page, as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from supervisor.report.comparison.comparison import Comparison, figures_of
from supervisor.report.facts.figures import count, show
from supervisor.report.words.filters import figure, in_words, percent, time_taken
from supervisor.report.words.render import curve_parts, page_style, template_of
from supervisor.report.words.tables import Column, Table
from supervisor.version import __version__

SHOWN_SETTINGS = 200
_LABELS = {
    "end": "end", "root_cause": "root cause", "last_step": "last step", "final_loss": "last loss",
    "attempts": "attempts", "treatments": "treatments", "wall_s": "time", "useful_share": "useful",
}  # fmt: skip
_WRITTEN = {
    "end": in_words, "root_cause": in_words, "final_loss": figure, "wall_s": time_taken,
    "useful_share": percent,
}  # fmt: skip


def comparison_html(comparison: Comparison, curves: dict[str, Any] | None) -> str:
    """Returns one page that needs nothing from outside; `curves` as of `render_html`."""
    parts = None if curves is None else curve_parts(curves)
    page = template_of("comparison.html.j2", autoescape=True).render(
        curves=parts, picture_css=page_style(), **_words(comparison)
    )
    return page + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    page = template_of("comparison.md.j2", autoescape=False).render(**_words(comparison))
    return page.strip() + "\n"


def comparison_json(comparison: Comparison) -> str:
    return json.dumps(comparison.to_dict(), indent=2, allow_nan=False) + "\n"


def sentence_of(comparison: Comparison) -> str:
    """Returns how far the runs are the same."""
    difference = comparison.difference
    if not comparison.common_steps:
        return "The runs have no step in common."
    if difference is None:
        return f"All {count(comparison.common_steps, 'common step')} are equal to the bit."
    same = (
        f"{count(comparison.equal_steps, 'step')} equal to the bit; at"
        if comparison.equal_steps
        else "The runs differ from the first step on: at"
    )
    said = f"{same} step {difference.step} the {difference.value} differs"
    if difference.ours is None or difference.theirs is None:
        return f"{said}."
    return f"{said}: {show(difference.ours, 9)} and {show(difference.theirs, 9)}."


def _words(comparison: Comparison) -> dict[str, Any]:
    one, other = (figures_of(report) for report in comparison.reports)
    names = comparison.names
    figures = Table(
        columns=(Column("", ""), *(Column(name, "") for name in names)),
        rows=tuple(
            (label, _written(key, one[key]), _written(key, other[key]))
            for key, label in _LABELS.items()
        ),
    )
    settings = Table(
        columns=(Column("of", ""), Column("key", "name"), *(Column(name, "") for name in names)),
        rows=tuple(
            (each.where, each.key, each.ours or "–", each.theirs or "–")
            for each in comparison.settings
        ),
    )
    return {
        "names": names,
        "sentence": sentence_of(comparison),
        "figures": figures,
        "settings": settings,
        "shown_settings": SHOWN_SETTINGS,
        "verdicts": [report.verdict for report in comparison.reports],
        "problems": [
            f"{name}: {problem}"
            for name, report in zip(names, comparison.reports, strict=True)
            for problem in report.problems
        ],
        "tool_version": __version__,
    }


def _written(key: str, value: Any) -> str:
    if value is None:
        return "–"
    return str(_WRITTEN[key](value)) if key in _WRITTEN else str(value)
