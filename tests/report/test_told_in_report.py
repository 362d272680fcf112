"""What a report says of a run that was treated, or that needed no help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

from supervisor.report.curves.plots import bands_of, draw_overview, draw_pictures
from supervisor.report.facts.crash_report import CrashReport
from supervisor.report.facts.run_data import RunData, load_material
from supervisor.report.gathering import gather
from supervisor.report.render import render_html, render_markdown
from supervisor.storage.steps.applied_rates import AppliedRates
from tests.report import synthetic_run
from tests.report.synthetic_run import SyntheticRun


def slowed_down(root: Path) -> Path:
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 100)
    run.event("action", step=40, name="cut_lr", cause="spike", outcome="applied", applied=True)
    rates = AppliedRates(run.rundir.steps(0))
    for row in range(40, 100):
        rates.append(row, 0.5)
    rates.close()
    run.event("worker_exited", cause="completed", step=99, returncode=0)
    run.finish("completed")
    return root


def words_of_overview(run_data: RunData, report: CrashReport) -> set[str]:
    figure = Figure()
    draw_overview(figure, run_data, report)
    return {text.get_text() for text in figure.findobj(Text)}


def test_a_healed_run_is_completed_treated_in_amber(tmp_path: Path) -> None:
    report = gather(slowed_down(tmp_path / "run"))

    assert report.title == "Completed, treated"
    assert '<header class="warn">' in render_html(report)


def test_what_was_tried_stands_above_the_pictures(tmp_path: Path) -> None:
    run_data = load_material(slowed_down(tmp_path / "run"))
    report = gather(run_data.root)

    page = render_html(report, draw_pictures(run_data, report))

    assert page.index('id="interventions"') < page.index('id="curves"')


def test_the_applied_rate_stands_beside_the_one_asked_for(tmp_path: Path) -> None:
    run_data = load_material(slowed_down(tmp_path / "run"))
    report = gather(run_data.root)

    (change,) = report.rate_changes

    assert (change.first_step, change.last_step, change.steps) == (40, 99, 60)
    assert change.applied_high == 0.5 * change.asked_high
    assert "asked for by the script" in words_of_overview(run_data, report)
    assert "another learning rate" in render_html(report)
    assert "another learning rate" in render_markdown(report)


def test_the_root_cause_of_a_completed_run_is_called_overcome(tmp_path: Path) -> None:
    report = gather(synthetic_run.treated(tmp_path / "run"))

    assert report.end == "completed"
    assert report.overcome
    for text in (render_html(report), render_markdown(report)):
        assert f"overcome: {report.root_cause.replace('_', ' ')}" in text


def test_many_marks_are_bands() -> None:
    assert bands_of([3, 5, 6, 90, 91, 200], near=5) == [(3, 6), (90, 91), (200, 200)]
    assert bands_of([], near=5) == []


def test_flat_panels_of_a_healthy_run_are_left_out(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 100)
    run.event("worker_exited", cause="completed", step=99, returncode=0)
    run.finish("completed")
    run_data = load_material(tmp_path / "run")
    steady = run_data.steps.replace(lr=np.full(100, 1e-3), risk=np.full(100, 0.01))

    words = words_of_overview(replace(run_data, steps=steady), gather(tmp_path / "run"))

    assert "Gradient norm" in words
    assert "Learning rate" not in words
    assert "Crash risk" not in words
