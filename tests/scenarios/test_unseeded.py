from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.scenarios import runs

supervised = partial(runs.supervised, executed=True)

UNSEEDED = """
import random, sys
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
X = torch.randn(64, 4); Y = X.sum(1, keepdim=True) * random.random() + float(np.random.rand())
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    i = torch.randint(0, 64, (8,))
    loss = nn.functional.mse_loss(model(X[i]), Y[i])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

SEARCH = """
import numpy as np
import torch

draw = np.random.RandomState()
for trial in range(4):
    width, rate = int(draw.randint(4, 64)), float(10 ** draw.uniform(-4, -2))
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for _ in range(10):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
    print(trial, width, rate, loss.item(), flush=True)
"""


def test_an_unseeded_search_goes_on_as_itself_after_a_second_kill(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        SEARCH,
        settings=("checkpoint.every_steps=4", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 15}, {kind: sigkill, step: 25}]",
    )

    assert ended.returncode == 0, ended.stderr
    resumed = [(e["exactness"], e["from_step"]) for e in ended.events("resumed")]
    assert resumed == [("exact", 12), ("exact", 24)], ended.stderr
    lines = sorted(set(ended.stdout.splitlines()))
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]  # each trial is one


def test_a_script_without_a_seed_resumes_exactly(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        UNSEEDED,
        settings=("trail=true", "checkpoint.every_steps=4", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 10}]",
    )

    assert ended.returncode == 0, ended.stderr
    resumed = ended.events("resumed")
    assert [(e["exactness"], e["from_step"]) for e in resumed] == [("exact", 8)], resumed
    assert _parts(ended.run_dir, attempt=1, step=10) == _parts(ended.run_dir, attempt=2, step=10)


def _parts(run_dir: Path, *, attempt: int, step: int) -> object:
    from supervisor.analysis.trail import read_trail
    from supervisor.storage.run.rundir import RunDirectory

    marks = read_trail(RunDirectory(run_dir))
    found = [mark for mark in marks if (mark.attempt, mark.step) == (attempt, step)]
    assert len(found) == 1
    return {part: names for part, names in found[0].parts.items() if part != "variable"}
