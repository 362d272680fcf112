"""Turns a report into a page, into text for a pull request, and into JSON."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from supervisor.report.curves.curve_document import (
    as_script_data,
    curves_css,
    curves_script,
    layer_document,
)
from supervisor.report.curves.plots import Picture
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.figures import count, number, page_css, show
from supervisor.report.tables import (
    build_tables,
    clocktime,
    cost_parts,
    error_percent,
    in_words,
    percent,
    time_taken,
)
from supervisor.version import __version__

TEMPLATES = Path(__file__).parents[0] / "templates"
TONES = {
    "completed": "good",
    "running": "info",
    "interrupted": "warn",
    "gave_up": "bad",
    "failed": "bad",
    "supervisor_died": "bad",
    "unknown": "warn",
}


def render_json(report: CrashReport) -> str:
    """Returns strict JSON (no NaN, no Infinity), indented."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"


def render_html(
    report: CrashReport,
    pictures: Sequence[Picture] = (),
    curves: dict[str, Any] | None = None,
) -> str:
    """Returns one page that needs nothing from outside: no script, no font, no picture.

    `curves`: a document of `curve_document`, which readers can zoom; without scripts they see the
    picture of the whole run instead.
    """
    drawn = {
        picture.name: f"data:image/png;base64,{base64.b64encode(picture.png).decode()}"
        for picture in pictures
    }
    template = template_of("report.html.j2", autoescape=True)
    parts = None if curves is None else curve_parts(curves)
    page = template.render(
        report=report,
        pictures=drawn,
        curves=parts,
        layers=Markup(as_script_data(layer_document(report.gradient_flow))),
        picture_css=page_style(),
        **_words(report),
    )
    return page + "\n"


def curve_parts(document: dict[str, Any]) -> dict[str, Markup]:
    """Returns what a page needs to draw a document of `curve_document`."""
    return {
        "css": Markup(curves_css()),
        "script": Markup(curves_script()),
        "data": Markup(as_script_data(document)),
    }


def render_markdown(report: CrashReport) -> str:
    """Returns GitHub-flavoured Markdown; the longest sections are folded."""
    template = template_of("report.md.j2", autoescape=False)
    text = template.render(report=report, **_words(report))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def page_style() -> Markup:
    """Returns the colours of the curves, for a page's style sheet."""
    return Markup(page_css())


@cache
def template_of(name: str, *, autoescape: bool) -> jinja2.Template:
    """Returns one of our templates with our filters; whatever it leaves out is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        figure=show, duration=time_taken, words=in_words, md=escape_markdown, fence=_fence,
        clocktime=clocktime, percent=percent, share=error_percent,
    )  # fmt: skip
    environment.globals["count"] = count
    return environment.get_template(name)


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
    explain = explained(report.explain)
    return {
        "parts": cost_parts(report),
        "tone": _tone(report),
        "cause": ("overcome: " if report.overcome else "") + in_words(report.root_cause),
        "explain": explain,
        "tables": build_tables(report, explain),
        "tool_version": __version__,
        "run_name": Path(report.run_dir).name,
    }


def _tone(report: CrashReport) -> str:
    if report.end == "completed" and any(not incident.survived for incident in report.incidents):
        return "bad"
    if report.shortfalls and report.end in ("completed", "running", "interrupted"):
        return "bad" if report.shortfalls[0].is_bad else "warn"
    if report.end == "completed" and report.treatments:
        return "warn"
    return TONES.get(report.end, "info")


MOST_LAYERS = 12


def explained(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns explain.json with all the fields that the templates read, whatever it holds."""
    if not found:
        return None
    replays = found.get("replays")
    replays = replays if isinstance(replays, list) else []
    fields = ("summary", "root_cause", "confidence", "sample", "module", "operation")
    return {
        **{name: found.get(name) for name in fields},
        "replays": [
            {name: row.get(name) for name in ("change", "crashed", "at_step")}
            for row in replays
            if isinstance(row, dict)
        ],
        "precision": _precision(found.get("precision")),
    }


def _precision(found: Any) -> dict[str, Any] | None:
    """Returns the layers that the precision in use changes most, and what overflows."""
    if not isinstance(found, dict) or not isinstance(found.get("layers"), list):
        return None
    layers = [layer for layer in found["layers"] if isinstance(layer, dict)]
    worst = sorted(layers, key=lambda layer: -number(layer.get("relative_error")))[:MOST_LAYERS]
    overflow = found.get("overflow")
    overflow = overflow if isinstance(overflow, dict) else {}
    return {
        "dtype": str(found.get("dtype", "")).upper(),
        "left_out": len(layers) - len(worst),
        "layers": [
            {name: layer.get(name) for name in ("name", "type", "relative_error", "own_error")}
            for layer in layers
            if layer in worst
        ],
        "overflow": {
            name: overflow.get(name)
            for name in ("module", "operation", "largest", "saturated_share")
        }
        if overflow
        else None,
    }
