"""Writes the report of a run: report.json, report.md, report.html and the pictures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.masking import mask_all
from supervisor.report.curves.curve_document import DrawnRun, curve_document
from supervisor.report.curves.curves import curves_of
from supervisor.report.curves.plots import EVERY, Picture, draw_pictures
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.run_data import RunData, load_material
from supervisor.report.gathering import build_report
from supervisor.report.render import render_html, render_json, render_markdown
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.rundir import RunDirectory


def write_report(
    rundir: Path | str | RunDirectory, names: Collection[str] | None = None
) -> dict[str, Path]:
    """Writes the report into ``report/`` of a run, private to the user; an earlier one is replaced.
    A picture that cannot be drawn is named in the text and prevents nothing.

    Args:
        rundir: of the run.
        names: of the pictures, some of `EVERY`; None: the overview, unless ``report.plots`` is
            off.

    Returns:
        Kind (``json``, ``md``, ``html``, or a picture's name) → path.

    Raises:
        OSError: the directory cannot be written to.
    """
    folder = rundir if isinstance(rundir, RunDirectory) else RunDirectory(rundir)
    run_data = load_material(folder.root)
    report = build_report(run_data)
    folder.make(folder.report)
    if names is None:
        group = run_data.config.get("report")
        names = () if isinstance(group, dict) and group.get("plots") is False else ("overview",)
    curves = document_of([run_data])
    written = _write_text(folder, report, (), curves)
    report, pictures = _draw(run_data, report, names)
    for name in EVERY:  # an older picture of another state would stand beside the new report
        if name not in names:
            (folder.report / f"{name}.png").unlink(missing_ok=True)
    for picture in pictures:
        path = folder.report / f"{picture.name}.png"
        write_private(path, picture.png)
        written[picture.name] = path
    return {**written, **_write_text(folder, report, pictures, curves)}


def build_document(rundir: RunDirectory, kind: str, names: Collection[str] = ("overview",)) -> str:
    """Returns the report as ``html`` (with its pictures), ``md`` or ``json``; writes nothing."""
    run_data = load_material(rundir.root)
    report = build_report(run_data)
    if kind == "html":
        return render_html(*_draw(run_data, report, names), document_of([run_data]))
    return render_markdown(report) if kind == "md" else render_json(report)


def build_comparison(rundir: RunDirectory, other: RunDirectory, kind: str) -> str:
    """Returns two runs beside each other as ``html``, ``md`` or ``json``; writes nothing."""
    from supervisor.report import comparison

    runs = load_material(rundir.root), load_material(other.root)
    compared = comparison.compare(runs, (build_report(runs[0]), build_report(runs[1])))
    if kind == "html":
        return comparison.comparison_html(compared, document_of(runs, compared.names))
    written = comparison.comparison_markdown if kind == "md" else comparison.comparison_json
    return written(compared)


def write_pictures(rundir: Path | str | RunDirectory) -> dict[str, Path]:
    """Writes ``overview.png`` and ``observed.png`` of a run as it is now; the report replaces them.

    Returns:
        Kind → path, of those for which there is data.

    Raises:
        OSError: the directory cannot be written to.
    """
    folder = rundir if isinstance(rundir, RunDirectory) else RunDirectory(rundir)
    run_data = load_material(folder.root)
    pictures = draw_pictures(run_data, build_report(run_data), ("overview", "observed"))
    folder.make(folder.report)
    written = {}
    for picture in pictures:
        written[picture.name] = folder.report / f"{picture.name}.png"
        write_private(written[picture.name], picture.png)
    return written


def _draw(
    run_data: RunData, report: CrashReport, names: Collection[str]
) -> tuple[CrashReport, tuple[Picture, ...]]:
    try:
        return report, draw_pictures(run_data, report, names)
    except Exception as error:  # a report must come out without its pictures
        problem = f"The pictures could not be drawn ({type(error).__name__}: {error})."
        return replace(report, problems=(*report.problems, problem)), ()


def _write_text(
    folder: RunDirectory,
    report: CrashReport,
    pictures: tuple[Picture, ...],
    curves: dict[str, Any] | None,
) -> dict[str, Path]:
    texts = {
        "json": render_json(report),
        "md": render_markdown(report),
        "html": render_html(report, pictures, curves),
    }
    written = {}
    for kind, text in texts.items():
        path = folder.report / f"report.{kind}"
        write_private(path, text)
        written[kind] = path
    return written


def document_of(runs: Sequence[RunData], names: Sequence[str] = ()) -> dict[str, Any] | None:
    """Returns the document for `Curves`, with secrets masked; None without a step.

    `names`: how the runs are called; their folders' names by default.
    """
    names = names or [Path(run.root).name for run in runs]
    drawn = [
        DrawnRun(name=name, curves=curves_of(run), events=run.events, lines=run.lines)
        for name, run in zip(names, runs, strict=True)
    ]
    document = curve_document(drawn)
    # Numbers, which most of it is, hold no secret.
    texts = mask_all({name: value for name, value in document.items() if name != "curves"})
    return {**document, **texts} if document["panels"] else None
