"""Two runs beside each other: where they part, and what was asked for differently."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.report.comparison import (
    StepDifference,
    compare,
    comparison_html,
    comparison_markdown,
    sentence_of,
)
from supervisor.report.facts.run_data import load_material
from supervisor.report.gathering import build_report
from supervisor.report.write import build_comparison
from supervisor.storage.files.private_files import write_json
from supervisor.storage.run.rundir import RunDirectory
from tests.browser import DRIVER, browser
from tests.report.synthetic_run import SyntheticRun

HOSTILE = "<script>alert(1)</script>"


def a_run(root: Path, **steps: Any) -> SyntheticRun:
    run = SyntheticRun(root)
    run.start(1)
    run.steps(0, 49, **steps)
    run.exit("completed", 49, returncode=0)
    run.finish("completed")
    return run


def of(one: SyntheticRun, other: SyntheticRun) -> Any:
    runs = load_material(one.rundir.root), load_material(other.rundir.root)
    return compare(runs, (build_report(runs[0]), build_report(runs[1])))


def test_runs_that_are_equal_are_said_to_be(tmp_path: Path) -> None:
    nan = {7: math.nan}
    found = of(a_run(tmp_path / "a", losses=nan), a_run(tmp_path / "b", losses=nan))

    assert (found.common_steps, found.equal_steps, found.difference) == (50, 50, None)
    assert sentence_of(found) == "All 50 common steps are equal to the bit."
    assert found.settings == ()


def test_the_first_step_and_the_first_cause_that_differ_are_named(tmp_path: Path) -> None:
    one = a_run(tmp_path / "a")
    other = a_run(tmp_path / "b", lrs={20: 1.0}, losses={20: 9.0, 30: 8.0})

    found = of(one, other)

    assert found.difference == StepDifference(
        step=20, value="learning rate", ours=3e-4 * (21 / 40), theirs=1.0
    )
    assert found.equal_steps == 20
    assert "at step 20 the learning rate differs: 0.0001575 and 1" in sentence_of(found)


def test_a_nan_against_a_number_is_a_difference(tmp_path: Path) -> None:
    found = of(a_run(tmp_path / "a", losses={3: math.nan}), a_run(tmp_path / "b"))

    assert found.difference is not None
    assert (found.difference.step, found.difference.value) == (3, "loss")
    json.dumps(found.to_dict(), allow_nan=False)


def test_settings_arguments_and_versions_are_compared_with_secrets_masked(tmp_path: Path) -> None:
    one, other = a_run(tmp_path / "a"), a_run(tmp_path / "b")
    arguments = ("--lr", "1", "--api-key", "abcdef123456")
    state = replace(other.state, arguments=arguments, versions={"torch": "2.0"})
    write_json(other.rundir.run_json, state)
    other.rundir.config_yaml.write_text("checkpoint:\n  every_steps: 5\n")

    found = of(one, other)

    keys = {(each.where, each.key): (each.ours, each.theirs) for each in found.settings}
    assert keys["config", "checkpoint.every_steps"] == ("", "5")
    assert keys["versions", "torch"] == ("2.13.0", "2.0")
    assert keys["command", "arguments"][0] == "--lr 3e-4"
    assert "abcdef123456" not in str(found)


def test_runs_without_a_step_in_common_and_damaged_ones_are_compared_too(tmp_path: Path) -> None:
    one, other = a_run(tmp_path / "a"), a_run(tmp_path / "b")
    other.rundir.steps(0).write_bytes(b"damaged, quite so" * 100)

    found = of(one, other)

    assert sentence_of(found) == "The runs have no step in common."
    assert "What could not be read" in comparison_markdown(found)
    assert "cannot be read" in comparison_html(found, None)


@pytest.mark.parametrize(("one", "other"), [("x/run", "y/run"), ("a", "b")])
def test_runs_are_told_apart_by_their_names(tmp_path: Path, one: str, other: str) -> None:
    found = of(a_run(tmp_path / one), a_run(tmp_path / other))
    assert found.names == (one, other)


def test_a_page_holds_no_markup_of_a_run(tmp_path: Path) -> None:
    one, other = a_run(tmp_path / "a"), a_run(tmp_path / "b")
    write_json(other.rundir.run_json, replace(other.state, arguments=(HOSTILE,), script=HOSTILE))

    page = build_comparison(one.rundir, other.rundir, "html")

    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


@pytest.mark.skipif(DRIVER is None, reason="no chromedriver on this machine")
@pytest.mark.parametrize("width", [500, 1280])
def test_a_browser_draws_both_runs_on_one_axis(tmp_path: Path, width: int) -> None:
    one, other = a_run(tmp_path / "one"), a_run(tmp_path / "other", losses={30: 8.0})
    path = tmp_path / "against.html"
    path.write_text(build_comparison(one.rundir, RunDirectory(other.rundir.root), "html"))

    with browser(tmp_path / "profile") as window:
        window.resize(width, 900)
        window.open(path.as_uri())
        window.wait_for("document.querySelectorAll('.panel canvas').length >= 3")
        keys = window.run("return document.querySelector('.panel .keys').innerText")
        wide = window.run(
            "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        assert window.errors() == []

    assert "one" in keys
    assert "other" in keys
    assert not wide
