"""The line of an anomaly has every field that is promised."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from supervisor.detectors.registry import build_detectors
from supervisor.records import Alert, Cause, Severity, StepRecord
from supervisor.settings import CaptureSettings, CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.files.json_files import read_lines
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.worker.core.part import Ended
from supervisor.worker.judging import anomaly_scene as model_scene
from supervisor.worker.judging.anomaly_scene import AnomalyScene, ModelScene, threshold_info

FIELDS = {"median", "mad", "mean", "std", "threshold", "relative_change"}


def model_scene_of(
    rundir: RunDirectory,
    rank: int = 0,
    models: Mapping[str, Any] = MappingProxyType({}),
    warn: Callable[[str], None] = print,
) -> ModelScene:
    registry = SimpleNamespace(models=models)
    context: Any = SimpleNamespace(rundir=rundir, rank=rank, registry=registry, warn=warn)
    return ModelScene(context)


def record_of(step: int, loss: float) -> StepRecord:
    return StepRecord(step=step, loss=loss, grad_norm=2.0, loss_seen=True, grad_norm_seen=True)


def test_a_norm_that_was_never_seen_is_null_and_no_nan(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    ring = CheckpointRing(rundir.checkpoints, CheckpointSettings())
    scene = AnomalyScene(rundir, 0, CaptureSettings(), ring, model_scene_of(rundir), list)
    record = StepRecord(step=3, loss=float("inf"), loss_seen=True)

    scene.save(record, (), [], Journal(rundir.rank_journal(0), attempt=1, rank=0))

    (line,) = read_lines(rundir.anomalies(0))
    assert (line["loss"], line["grad_norm"]) == ("inf", None)


def test_loss_and_gradient_norm_come_with_what_was_usual_before(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    losses = [1.0 + 0.01 * (step % 7) for step in range(60)]
    rundir.make(rundir.steps(0).parent)
    recorder = FlightRecorder(rundir.steps(0), 1)
    for step, loss in enumerate([*losses, 9.0]):
        recorder.append(record_of(step, loss), time=float(step))
    ring = CheckpointRing(rundir.checkpoints, CheckpointSettings())
    model_scene = model_scene_of(rundir)
    detectors = build_detectors({})
    scene = AnomalyScene(rundir, 0, CaptureSettings(), ring, model_scene, lambda: detectors)
    spike = Alert(
        step=60,
        detector="loss_anomaly",
        severity=Severity.HIGH,
        category="loss",
        kind="loss_spike",
        cause=Cause.SPIKE,
        message="the loss left its level",
        value=9.0,
        threshold=1.2,
    )
    journal = Journal(rundir.rank_journal(0), attempt=1, rank=0)

    scene.save(record_of(60, 9.0), (spike,), [torch.zeros(8, 3)], journal)

    recorder.close()
    (line,) = read_lines(rundir.anomalies(0))
    loss, norm = (line["threshold_info"][name] for name in ("loss", "grad_norm"))
    before = losses[-50:]
    assert set(loss) == set(norm) == FIELDS
    assert loss["median"] == statistics.median(before)
    assert abs(loss["mean"] - statistics.fmean(before)) < 1e-12
    assert abs(loss["std"] - statistics.pstdev(before)) < 1e-12
    assert loss["mad"] > 0.0
    assert max(before) < loss["threshold"] < 9.0
    assert abs(loss["relative_change"] - (9.0 - losses[-1]) / losses[-1]) < 1e-12
    assert norm == dict.fromkeys(FIELDS, 0.0) | {
        "median": 2.0,
        "mean": 2.0,
        "threshold": norm["threshold"],
    }
    assert line["threshold_info"]["loss_spike"]["threshold"] == 1.2
    assert line["batch_info"]["batch_0"]["shape"] == [8, 3]
    assert line["data_dir"] in line["batch_info"]["batch_0"]["path"]
    assert line["model_checkpoint"] is None


@pytest.mark.parametrize(
    "settings", [{}, {"k": 4.0, "window": 20}, {"min_rise": 0.6}, {"fixed": 3.0}]
)
def test_the_threshold_is_the_one_that_the_detector_drew(
    tmp_path: Path, settings: dict[str, float]
) -> None:
    rundir = RunDirectory(tmp_path)
    rundir.make(rundir.steps(0).parent)
    recorder = FlightRecorder(rundir.steps(0), 1)
    detectors = build_detectors({"loss_anomaly": settings})
    judge = next(detector for detector in detectors if detector.name == "loss_anomaly")
    for step in range(60):
        record = record_of(step, 1.0 + 0.01 * (step % 7) - 0.002 * step)
        recorder.append(record, time=float(step))
        judge.update(record)
    spike = record_of(60, 9.0)
    alert = judge.update(spike)
    assert alert is not None

    info = threshold_info(rundir, 0, spike, (), detectors)

    recorder.close()
    assert math.isclose(info["loss"]["threshold"], alert.threshold)
    assert math.isnan(threshold_info(rundir, 0, spike, (), [])["loss"]["threshold"])


def sick_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    gradient = model[1].weight.grad
    assert gradient is not None
    gradient[0, 0] = math.nan
    return model


def scene_of(folder: Path, warned: list[str], rank: int = 0) -> ModelScene:
    model = sick_model()
    return model_scene_of(RunDirectory(folder), rank, {"model_0": model}, warned.append)


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

    scene = model_scene_of(RunDirectory(tmp_path), 0, {"model_0": model})
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
