"""The log that TensorBoard reads has each step once, after kills, rollbacks and a resume."""

from __future__ import annotations

import math
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
        settings=("log.tensorboard=true", "checkpoint.every_steps=10"),
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
