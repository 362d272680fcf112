"""The shape of a loss explosion."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from supervisor.report.curves.plots import EVERY, draw_pictures
from supervisor.report.facts.anomalies import find_explosion, read_gradient_flow
from supervisor.report.facts.run_data import load_material
from supervisor.report.facts.step_table import StepTable, build_step_table
from supervisor.report.gathering import gather
from supervisor.report.render import render_html, render_markdown
from supervisor.storage.steps.flight_recorder import LOSS_SEEN, STEP_DTYPE
from tests.report import synthetic_run


def table(losses: list[float]) -> StepTable:
    rows = np.zeros(len(losses), dtype=STEP_DTYPE)
    rows["step"] = np.arange(len(losses))
    rows["loss"] = losses
    rows["flags"] = LOSS_SEEN
    return build_step_table(rows)


def calm(steps: int = 80, level: float = 2.0) -> list[float]:
    noise = np.random.default_rng(1).standard_normal(steps)
    return [float(value) for value in level + 0.02 * noise]


@pytest.mark.parametrize("last", [60.0, math.nan, math.inf])
def test_a_loss_that_leaves_its_level_at_once_is_a_sudden_jump(last: float) -> None:
    found = find_explosion(table([*calm(), last]))

    assert found is not None
    assert (found.shape, found.onset_step, found.peak_step) == ("sudden_jump", 80, 80)
    assert "bad batch" in found.likely_causes[0]


def test_a_level_that_is_reached_at_once_and_only_varies_is_a_sudden_jump() -> None:
    found = find_explosion(table([*calm(), 239.0, 241.0, 236.0, 244.0, 270.0]))

    assert found is not None
    assert (found.shape, found.onset_step, found.peak_step) == ("sudden_jump", 80, 84)


def test_a_steady_climb_is_exponential_growth_with_its_doubling_time() -> None:
    climb = [2.0 + 0.5 * 2 ** (step / 3) for step in range(25)]

    found = find_explosion(table([*calm(), *climb]))

    assert found is not None
    assert found.shape == "exponential_growth"
    assert found.onset_step in range(78, 86)
    assert "doubling about every 3 steps" in found.sentence


def test_growing_swings_are_an_oscillating_divergence() -> None:
    swings = [4.0 + 1.3**step * (1.0 if step % 2 else 0.2) for step in range(24)]

    found = find_explosion(table([*calm(), *swings]))

    assert found is not None
    assert found.shape == "oscillating_divergence"
    assert "optimizer" in found.likely_causes[0]


def test_a_falling_loss_with_noise_has_no_explosion() -> None:
    falling = [4.0 * math.exp(-step / 50) + 0.1 + value for step, value in enumerate(calm(200))]

    assert find_explosion(table(falling)) is None


@pytest.mark.parametrize("losses", [[], [1.0], [math.nan] * 30, [1.0, 2.0, 900.0]])
def test_too_little_to_judge_is_no_explosion(losses: list[float]) -> None:
    assert find_explosion(table(losses)) is None


def test_what_came_after_the_step_in_question_is_left_out() -> None:
    losses = [*calm(), 50.0, *calm(), 900.0]

    found = find_explosion(table(losses), until=100)

    assert found is not None
    assert found.peak_step == 80


LAYERS = [
    {"name": "encoder.0", "norm": 0.5, "mean": 0.01, "max": 0.2, "min": 0.0, "zero_share": 0.25,
     "nonfinite": 0},
    {"name": "head", "norm": "nan", "mean": "nan", "max": "nan", "min": "nan", "zero_share": 0.0,
     "nonfinite": 8},
]  # fmt: skip
SICK = {"name": "head.weight", "kind": "gradient", "problem": "nan", "nan_count": 8,
        "inf_count": 0, "huge_count": 0, "max_abs": 0.0}  # fmt: skip


def write(folder: Path, document: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gradient_flow.json").write_text(json.dumps(document))


def test_layers_sick_tensors_and_a_picture_are_shown_with_their_step(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    write(root / "report", {"step": 120, "layers": LAYERS, "unhealthy": [SICK]})

    report = gather(root)
    pictures = draw_pictures(load_material(root), report, EVERY)
    page, text = render_html(report, pictures), render_markdown(report)

    assert report.gradient_flow_step == 120
    assert [picture.name for picture in pictures] == ["overview", "gradient_flow"]
    for shown in (page, text):
        assert "encoder.0" in shown
        assert "Layers with NaN, infinite or huge values" in shown
    assert "Measured at step 120" in page


def test_the_newest_capture_counts_and_a_bare_list_is_enough(tmp_path: Path) -> None:
    data = tmp_path / "anomalies" / "data"
    write(data / "step_100_rank_0_20260131T031207_000001", LAYERS[:1])
    write(data / "step_9_rank_0_20260131T031200_000001", {"step": 9, "layers": LAYERS})
    write(tmp_path / "report", "damaged")

    facts = read_gradient_flow(tmp_path)

    assert [row["name"] for row in facts.layers] == ["encoder.0"]
    assert facts.step is None
