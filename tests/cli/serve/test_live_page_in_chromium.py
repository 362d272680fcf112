"""The live page in a real browser. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.records import StepRecord
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder
from tests.browser import DRIVER, Browser, browser
from tests.cli.serve.test_server import HOSTILE, serving
from tests.report import synthetic_run

pytestmark = pytest.mark.skipif(DRIVER is None, reason="no chromedriver on this machine")

DRAWN = "document.querySelectorAll('.panel canvas').length"
STEPS = "[...document.querySelectorAll('input[type=number]')].map(one => Number(one.value))"
CUT = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def shown(window: Browser) -> str:
    return str(window.run("return document.body.innerText"))


def focus(window: Browser, title: str) -> None:
    window.run(
        "[...document.querySelectorAll('.panel')]"
        ".find(one => one.querySelector('b').textContent === arguments[0]).focus()",
        title,
    )


def test_a_run_is_shown_live_zoomed_and_smoothed(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    rundir = RunDirectory(root)
    with serving(root) as server, browser(tmp_path / "profile") as window:
        window.resize(1280, 1000)
        window.open(server.url)
        window.wait_for(f"{DRAWN} === 4")
        assert "The worker was killed" in shown(window)
        assert window.run(f"return {STEPS}") == [0, 299]

        # the keyboard: closer, further to the right, all again
        focus(window, "Loss")
        window.press("+")
        assert window.run(f"return {STEPS}") == [74, 225]
        window.press("\ue014")
        assert window.run(f"return {STEPS}") == [111, 263]
        window.press("0")
        assert window.run(f"return {STEPS}") == [0, 299]
        label = "document.querySelector('.panel').getAttribute('aria-label')"
        window.wait_for(f"{label}.includes('at step 299, lowest')")  # after the page has fetched
        label = window.run(f"return {label}")
        assert "not finite at 1 of the steps shown" in label

        # smoothing and another value
        window.run(
            "const slider = document.querySelector('input[type=range]');"
            "slider.value = 5; slider.dispatchEvent(new Event('input'))"
        )
        assert "32 steps" in shown(window)
        window.run(
            "[...document.querySelectorAll('details label')]"
            ".find(one => one.textContent === 'Step time (s)').querySelector('input').click()"
        )
        window.wait_for(f"{DRAWN} === 5")

        # the training goes on
        recorder = FlightRecorder(rundir.steps(0), 3)
        for step in range(300, 320):
            recorder.append(StepRecord(step=step, loss=1.0, loss_seen=True), time=0.0)
        recorder.close()
        window.wait_for(f"{STEPS}[1] === 319")

        assert window.errors() == []


@pytest.mark.parametrize("width", [500, 1280])
def test_nothing_is_cut_and_no_text_of_a_run_becomes_part_of_the_page(
    tmp_path: Path, width: int
) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "runs" / HOSTILE)
    run.start(1)
    run.steps(0, 20)
    run.event("alert", step=7, alert_kind="nonfinite_loss", severity="critical",
              cause="nonfinite", message=HOSTILE * 20)  # fmt: skip
    recorder = FlightRecorder(run.rundir.steps(0), 1)
    hostile = {HOSTILE: 1.0}
    recorder.append(StepRecord(step=21, loss=1.0, loss_seen=True, observed=hostile), time=0.0)
    recorder.close()
    log = run.rundir.log(1, 0)
    run.rundir.make(log.parent)
    log.write_text("</pre><script>document.title = 'taken'</script>" + "w" * 400)
    run.finish("completed")

    with serving(tmp_path / "runs") as server, browser(tmp_path / "profile") as window:
        window.resize(width, 900)
        window.open(server.url)
        window.wait_for("document.querySelector('table.runs a')")
        assert not window.run(f"return {CUT}")
        window.run("document.querySelector('table.runs a').click()")
        window.wait_for(f"{DRAWN} >= 2")
        window.wait_for("document.querySelector('.events').children.length > 2")

        assert HOSTILE in shown(window)
        assert window.run("return document.querySelectorAll('img').length") == 0
        assert "taken" not in window.run("return document.title")
        assert not window.run(f"return {CUT}")
        assert window.errors() == []


def test_a_lost_connection_is_said(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    with browser(tmp_path / "profile") as window:
        with serving(root) as server:
            window.open(server.url)
            window.wait_for(f"{DRAWN} === 4")
            assert "connection lost" not in shown(window)
        window.wait_for("!document.getElementById('lost').hidden")


def test_dark_readers_get_dark_colours(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    with serving(root) as server, browser(tmp_path / "profile", dark=True) as window:
        window.open(server.url)
        window.wait_for(f"{DRAWN} === 4")
        context = window.run("return getComputedStyle(document.body).backgroundColor")
    assert context == "rgb(18, 21, 27)"
