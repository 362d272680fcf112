"""The log that TensorBoard reads has each step once, after kills, rollbacks and a resume."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from supervisor.storage.steps.flight_reader import read_steps
from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised

LOOP = f"""{PRELUDE}
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]) * (float("nan") if step == 25 else 1.0)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    ended = supervised(
        tmp_path,
        LOOP,
        settings=(
            "log.tensorboard=true",
            "checkpoint.every_steps=10",
            "checkpoint.background=false",
        ),
        faults="[{kind: sigkill, step: 38}]",
    )

    assert ended.returncode == 0, ended.stderr
    shown = scalars(tmp_path / "run" / "tensorboard")
    assert [step for step, _ in shown["loss"]] == list(range(60))
    recorded = read_steps(tmp_path / "run")["loss"]
    for (_, value), loss in zip(shown["loss"], recorded, strict=True):
        assert value == pytest.approx(loss, rel=1e-6) or math.isnan(value) == math.isnan(loss)
    assert {value for _, value in shown["attempt"]} == {1.0, 2.0}
    assert shown["treatments"][-1][1] >= 1
    assert len(shown["risk"]) == 60


def test_mlflow_has_one_run_for_all_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = f"file:{tmp_path / 'mlruns'}"
    ended = supervised(
        tmp_path,
        LOOP,
        settings=(
            f"log.mlflow={store}",
            "checkpoint.every_steps=10",
            "checkpoint.background=false",
        ),
        faults="[{kind: sigkill, step: 38}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert "no longer logged" not in ended.stderr
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("training-supervisor")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    recorded = read_steps(tmp_path / "run")["loss"].tolist()
    newest: dict[int, tuple[int, float]] = {}
    for metric in client.get_metric_history(run.info.run_id, "loss"):
        if metric.step not in newest or metric.timestamp >= newest[metric.step][0]:
            newest[metric.step] = (metric.timestamp, metric.value)
    finite = {step: loss for step, loss in enumerate(recorded) if math.isfinite(loss)}
    assert {step: value for step, (_, value) in newest.items()} == finite


def test_wandb_has_one_run_for_all_attempts_and_for_the_scripts_own_logging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    said = "import os; print('own', os.environ['WANDB_RUN_ID'], os.environ['WANDB_RESUME'])\n"
    own = f"{said}{LOOP}{said}"
    ended = supervised(
        tmp_path,
        own,
        settings=(
            "log.wandb=a_project",
            "log.wandb_of_script=true",
            "checkpoint.every_steps=10",
            "checkpoint.background=false",
        ),
        faults="[{kind: sigkill, step: 38}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert "no longer logged" not in ended.stderr
    seen = [
        line
        for log in sorted((tmp_path / "run" / "logs").glob("attempt_*/rank_0.log"))
        for line in log.read_text().splitlines()
        if line.startswith("own ")
    ]
    assert len(seen) == 3
    assert len(set(seen)) == 1
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    rows = history(file)
    attempts = {row["step"]: row["attempt"] for row in rows}
    assert sorted(attempts) == list(range(60))
    assert set(attempts.values()) == {1, 2}
    assert (tmp_path / "run" / "logs" / "wandb.id").read_text().strip() in file.name


def history(file: Path) -> list[dict[str, float]]:
    """The rows of an offline run of Weights & Biases."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in records_of(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            named = {item.key or ".".join(item.nested_key): item.value_json for item in items}
            rows.append({name: json.loads(value) for name, value in named.items()})
    return rows


def records_of(data: bytes) -> list[bytes]:
    """The records of LevelDB's log format behind W&B's own header of 7 bytes: blocks of 32 KiB,
    pieces with checksum (4), length (2) and type (1: whole, 2: first, 3: middle, 4: last)."""
    found, begun, place = [], b"", 7
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        piece = data[place + 7 : place + 7 + length]
        place += 7 + length
        begun = piece if kind in (1, 2) else begun + piece
        if kind in (1, 4):
            found.append(begun)
    return found
