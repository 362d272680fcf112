"""Turns a report into a page, into text for a pull request, and into JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.figures import count, duration, number, show
from supervisor.report.pictures.plots import Picture
from supervisor.report.words.explained import explained
from supervisor.report.words.tried import sum_up_treatments
from supervisor.version import __version__

TEMPLATES = Path(__file__).parents[1] / "templates"
TONES = {
    "completed": "good",
    "running": "info",
    "interrupted": "warn",
    "gave_up": "bad",
    "failed": "bad",
    "supervisor_died": "bad",
    "unknown": "warn",
}
PARTS = (
    ("useful", "useful_s", "part of the final weights"),
    ("replayed", "replayed_s", "done again or thrown away"),
    ("stalled", "stalled_s", "standing still for checkpoints and treatments, or hung"),
    ("down", "down_s", "between two attempts"),
    ("other", "other_s", "start, set-up and end of the script"),
)


def render_json(report: CrashReport) -> str:
    """Returns strict JSON (no NaN, no Infinity), indented."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"


def render_html(report: CrashReport, pictures: Sequence[Picture] = ()) -> str:
    """Returns one page that needs nothing else: no script, no font, no picture from outside."""
    # Ours alone is trusted: matplotlib escapes the text that it puts into an SVG.
    drawn = {picture.name: Markup(_both_widths(picture)) for picture in pictures}
    template = _environment(autoescape=True).get_template("report.html.j2")
    return template.render(report=report, pictures=drawn, **_words(report)) + "\n"


def _both_widths(picture: Picture) -> str:
    """The picture, and the one that a page shows in its place on a narrow screen."""
    return f'<div class="wide">{picture.svg}</div><div class="narrow">{picture.narrow_svg}</div>'


def render_markdown(report: CrashReport) -> str:
    """Returns GitHub-flavoured Markdown; the longest sections are folded."""
    template = _environment(autoescape=False).get_template("report.md.j2")
    text = template.render(report=report, **_words(report))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _environment(*, autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        figure=_figure, duration=_cost, words=_in_words, md=escape_markdown, fence=_fence,
        clocktime=_clocktime, percent=_percent, share=_share,
    )  # fmt: skip
    environment.globals["count"] = count
    return environment


def escape_markdown(value: Any) -> str:
    """Returns `value` on one line, without anything that Markdown or HTML would act on."""
    text = " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~@!])", r"\\\1", text)


def _fence(value: Any) -> str:
    """Returns a code block whose fence is longer than any row of backticks within."""
    text = str(value)
    longest = max((len(row) for row in re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}text\n{text}\n{ticks}"


def _words(report: CrashReport) -> dict[str, Any]:
    cost = report.cost
    parts = [
        {
            "name": name,
            "seconds": getattr(cost, field),
            "share": getattr(cost, field) / cost.wall_s if cost.wall_s > 0 else 0.0,
            "meaning": meaning,
        }
        for name, field, meaning in PARTS
    ]
    return {
        "parts": parts,
        "tone": _tone(report),
        "cause": ("overcome: " if report.overcome else "") + _in_words(report.root_cause),
        "explain": explained(report.explain),
        "tried": sum_up_treatments(report.interventions),
        "tool_version": __version__,
        "run_name": Path(report.run_dir).name,
    }


def _tone(report: CrashReport) -> str:
    if report.end == "completed" and any(not incident.survived for incident in report.incidents):
        return "bad"
    if report.end == "completed" and report.treatments:
        return "warn"
    return TONES.get(report.end, "info")


def _figure(value: Any) -> str:
    return "–" if value is None else show(value)


def _cost(value: Any) -> str:
    return duration(number(value))


def _in_words(value: Any) -> str:
    return str(value).replace("_", " ")


def _percent(value: Any) -> str:
    share = 100 * number(value)
    if not math.isfinite(share):
        return "–"
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %"


def _share(value: Any) -> str:
    """As `_percent`, for errors: small ones with two digits, ``infinite`` where there is none."""
    share = 100 * number(value)
    if math.isinf(share):
        return "infinite"
    return f"{share:.2g} %" if abs(share) < 10 else _percent(value)


def _clocktime(value: Any) -> str:
    """Returns ``03:12:07`` of an ISO 8601 time; the text itself if it is none."""
    found = re.search(r"T(\d\d:\d\d:\d\d)", str(value))
    return found.group(1) if found else str(value)
