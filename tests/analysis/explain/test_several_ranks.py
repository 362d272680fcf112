"""All ranks of a run are replayed together, and the one that began the trouble is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.analysis.analyze import analyze as analysis
from supervisor.analysis.explain.explain import explain
from supervisor.analysis.explain.replay import replay_studio
from supervisor.analysis.explain.rules import RESHUFFLED, UNCHANGED, WITHOUT_BATCH
from supervisor.errors import SupervisorError
from supervisor.storage.run.run_state import load_run_state, save_run_state
from supervisor.storage.run.rundir import RunDirectory
from tests.scenarios.runs import supervised

pytestmark = pytest.mark.timeout(400)

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
X = torch.rand(480, 8) + 0.5
data = TensorDataset(X, X.sum(1, keepdim=True).sin())
sampler = DistributedSampler(data)
if sys.argv[1] == "sample":  # the fourth of what rank 1 gets at step 20
    X[torch.tensor(list(iter(DistributedSampler(data, rank=1))))[20 * 8 + 3]] = float("nan")
layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step, (x, y) in enumerate(DataLoader(data, batch_size=8, sampler=sampler)):
    if sys.argv[1] == "exception" and step == 20 and rank == 1:
        raise ValueError("record 17 is empty")
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
dist.destroy_process_group()
"""
SETTINGS = ("checkpoint.every_steps=8", "stop_after_steps=24", "restart.crash_limit=1")


def run(folder: Path, what: str) -> RunDirectory:
    ended = supervised(
        folder,
        SCRIPT,
        [what],
        settings=SETTINGS,
        options=["--nproc-per-node", "2", "--policy", "observe_only"],
    )
    return RunDirectory(ended.run_dir)


@pytest.mark.exhaustive
def test_a_sample_that_one_rank_alone_has_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = run(tmp_path, "sample")

    found = explain(rundir, changes=(WITHOUT_BATCH, RESHUFFLED))

    crashed = {replay.change: replay.at_step for replay in found.replays}
    assert found.root_cause == "data"
    assert (found.onset_step, found.rank, found.sample, found.ranks) == (20, 1, 3, 2)
    assert (crashed[UNCHANGED], crashed[WITHOUT_BATCH]) == (20, None)
    assert "Sample 3 of rank 1's batch" in found.summary
    assert json.loads((rundir.report / "explain.json").read_text())["rank"] == 1

    monkeypatch.setattr(analysis, "OTHER_SEEDS", ())
    found_again = analysis.analyze(rundir, step=20)
    (anomaly,) = found_again.anomalies
    assert (anomaly.rank, anomaly.sample, anomaly.exact) == (1, 3, True)
    assert math.isnan(anomaly.recomputed_loss)
    assert "sample 3 of rank 1's batch stands out" in str(found_again)


def test_an_exception_of_one_rank_is_told_as_its_own(tmp_path: Path) -> None:
    rundir = run(tmp_path, "exception")

    found = explain(rundir, changes=())

    assert (found.onset_step, found.rank) == (20, 1)
    assert "Rank 1: ValueError: record 17 is empty" in found.summary

    save_run_state(rundir, replace(load_run_state(rundir), ranks={"nnodes": "2"}))
    with (
        pytest.raises(SupervisorError, match="stood on several nodes"),
        replay_studio(rundir),
    ):
        pass
