"""What the worker measured of the model at an anomaly stands in the report."""

from __future__ import annotations

import json
from pathlib import Path

from supervisor.report.facts.gradient_flow import read_gradient_flow
from supervisor.report.facts.run_data import load_material
from supervisor.report.gathering import gather
from supervisor.report.pictures.plots import EVERY, draw_pictures
from supervisor.report.words.render import render_html, render_markdown
from tests.report import synthetic_run

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
