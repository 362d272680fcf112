"""What is written of the model when something is wrong: gradient flow and sick layers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from supervisor.storage.run.rundir import RunDirectory
from supervisor.worker.core.part import Ended
from supervisor.worker.evidence import model_scene
from supervisor.worker.evidence.model_scene import ModelScene


def sick_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    gradient = model[1].weight.grad
    assert gradient is not None
    gradient[0, 0] = math.nan
    return model


def scene_of(folder: Path, warned: list[str], rank: int = 0) -> ModelScene:
    model = sick_model()
    return ModelScene(RunDirectory(folder), rank, lambda: {"model_0": model}, warned.append)


def written(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "gradient_flow.json").read_text())
    return document


def test_an_anomaly_shows_each_layers_gradient_and_the_sick_tensors(tmp_path: Path) -> None:
    capture = tmp_path / "capture"
    capture.mkdir()

    scene_of(tmp_path, []).at_anomaly(60, worse=False, folder=capture)

    seen = written(tmp_path / "report")
    assert (seen["step"], seen["moment"]) == (60, "anomaly")
    assert [layer["name"] for layer in seen["layers"]] == ["0", "1"]
    assert [layer["nonfinite"] for layer in seen["layers"]] == [0, 1]
    assert [(t["name"], t["kind"], t["problem"]) for t in seen["unhealthy"]] == [
        ("1.weight", "gradient", "nan")
    ]
    assert written(capture) == seen


def test_a_second_look_waits_unless_it_is_worse_and_the_end_waits_too(tmp_path: Path) -> None:
    scene = scene_of(tmp_path, [])

    steps = []
    for step, worse in ((60, False), (70, False), (75, True)):
        scene.at_anomaly(step, worse=worse, folder=None)
        steps.append(written(tmp_path / "report")["step"])
    scene.ends(Ended(steps=91, completed=True, parts=False))

    assert steps == [60, 60, 75]
    assert written(tmp_path / "report")["moment"] == "anomaly"


def test_a_process_that_ends_by_itself_leaves_its_last_gradients(tmp_path: Path) -> None:
    scene_of(tmp_path, []).ends(Ended(steps=42, completed=True, parts=False))

    seen = written(tmp_path / "report")
    assert (seen["step"], seen["moment"]) == (41, "end")


def test_gradients_that_were_zeroed_are_none(tmp_path: Path) -> None:
    model = sick_model()
    model.zero_grad(set_to_none=False)

    scene = ModelScene(RunDirectory(tmp_path), 0, lambda: {"model_0": model}, print)
    scene.ends(Ended(steps=42, completed=True, parts=False))

    assert not (tmp_path / "report").exists()


def test_replicas_write_nothing(tmp_path: Path) -> None:
    scene_of(tmp_path, [], rank=1).at_anomaly(60, worse=True, folder=None)

    assert not (tmp_path / "report").exists()


def test_a_look_that_fails_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: nn.Module) -> None:
        raise RuntimeError("no memory left")

    warned: list[str] = []
    monkeypatch.setattr(model_scene, "gradient_flow", fail)
    scene = scene_of(tmp_path, warned)

    scene.at_anomaly(60, worse=True, folder=None)
    scene.at_anomaly(61, worse=True, folder=None)

    assert warned == ["gradient flow of step 60: RuntimeError: no memory left"]
