"""Anomalous steps performed again: the same loss, the gradients, and what the numbers say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import supervisor.analysis.analyze.analyze as analysis
from supervisor.analysis.analyze.statistics import Numbers, cause_of, statistics_at
from supervisor.config import load_config, save_resolved
from supervisor.errors import SupervisorError, UsageError
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.step_rows import GRAD_SEEN, LOSS_SEEN, STEP_DTYPE
from tests.analysis.sick_scripts import SOUND
from tests.scenarios.runs import supervised

pytestmark = pytest.mark.timeout(400)


def _rows(losses: list[float]) -> np.ndarray:
    rows = np.zeros(len(losses), STEP_DTYPE)
    rows["step"], rows["loss"], rows["grad_norm"] = np.arange(len(losses)), losses, 1.0
    rows["flags"] = LOSS_SEEN | GRAD_SEEN
    return rows


def test_a_step_performed_again_has_the_recorded_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("checkpoint.every_steps=50", "stop_after_steps=70")
    ended = supervised(tmp_path, SOUND, settings=settings)
    monkeypatch.setattr(analysis, "OTHER_SEEDS", (1001,))

    found = analysis.analyze(RunDirectory(ended.run_dir), step=60, visualize=True)

    anomaly = found.anomalies[0]
    folder = ended.run_dir / "anomalies" / "analysis"
    assert anomaly.recomputed_loss == anomaly.original_loss
    assert anomaly.other_seeds == {1001: anomaly.original_loss}
    assert set(anomaly.gradients) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    total = math.sqrt(sum(norm**2 for norm in anomaly.gradients.values()))
    assert total == pytest.approx(anomaly.grad_norm, rel=1e-5)
    assert list(anomaly.gradients.values()) == sorted(anomaly.gradients.values(), reverse=True)
    assert anomaly.activations["0"]["type"] == "Linear"
    assert json.loads((folder / "summary.json").read_text())["summary"]["count"] == 1
    pictures = {path.name for path in folder.glob("*.png")}
    assert pictures == {"overview.png", "step_60_gradients.png"}
    with pytest.raises(UsageError, match="--step 4000: this run made no such step"):
        analysis.analyze(RunDirectory(ended.run_dir), step=4000)


def test_a_jump_is_told_from_a_rise_over_several_steps() -> None:
    jump = statistics_at(_rows([1.0] * 20 + [8.0]), 20)
    rise = statistics_at(_rows([1.0] * 20 + [1.5, 2.2, 3.3, 4.0]), 23)

    assert "the loss jumped to 8" in jump.verdict
    assert jump.loss_jump == 8.0
    assert "the loss rose over several steps to 4" in rise.verdict


def test_a_mean_far_from_the_median_is_told() -> None:
    statistics = statistics_at(_rows([1.0] * 18 + [20.0, 1.0, 1.0]), 20)

    assert "above the median: a few steps dominate it" in statistics.verdict


def test_other_seeds_tell_the_batch_from_chance() -> None:
    statistics = statistics_at(_rows([1.0] * 20 + [8.0]), 20)

    def cause(now: float, *others: float) -> str:
        return cause_of(statistics, _seen(8.0), _seen(now), [_seen(loss) for loss in others])

    assert "the batch or the weights" in cause(8.0, 7.0, 8.5)
    assert "random numbers of this step" in cause(8.0, 1.0, 1.1)
    assert "1 of 2" in cause(8.0, 1.0, 8.0)
    assert "differs when computed again" in cause(1.0)


def test_a_gradient_that_is_nan_under_every_seed_is_not_chance() -> None:
    statistics = statistics_at(_rows([1.0] * 20 + [0.9]), 20)
    sick, calm = _seen(0.9, math.nan), [_seen(0.8, math.nan), _seen(1.1, math.nan)]

    assert "not chance" in cause_of(statistics, sick, sick, calm)
    assert "random numbers" in cause_of(statistics, sick, sick, [_seen(0.9), _seen(1.1)])
    assert "gradient norm differs" in cause_of(statistics, sick, _seen(0.9), calm)


def test_seeds_say_nothing_of_a_step_that_does_not_stand_out() -> None:
    statistics = statistics_at(_rows([1.0] * 20 + [1.0]), 20)

    assert cause_of(statistics, _seen(1.0), _seen(1.0), [_seen(0.5)]) == statistics.verdict


def _seen(loss: float, grad_norm: float = 1.0) -> Numbers:
    return Numbers(loss=loss, grad_norm=grad_norm)


def test_a_run_without_captures_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"kind": "module", "state": "completed"}))
    save_resolved(load_config(), tmp_path / "config.yaml")

    with pytest.raises(SupervisorError, match="no captured batch"):
        analysis.analyze(RunDirectory(tmp_path))
