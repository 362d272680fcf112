"""How many functions of ours a calm step calls: each is cold code between torch's, of 1 to 3 us."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import PolicySettings, RunSettings

MOST = 88
"""79 when this was written. Each module's call beside them comes by ours instead of by torch's."""

MOST_TO_JUDGE = 105
"""91 when this was written; calm steps are judged together, 32 at once."""

LAYERS = 24
SCRIPT = f"""
import json, statistics, sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range({LAYERS})))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(16, 8)
calls = 0


def count(frame, event, _):
    global calls
    calls += event == "call" and "/supervisor/" in frame.f_code.co_filename


steps = []
for step in range(400):
    if step == 300:
        sys.setprofile(count)
    calls = 0
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    steps.append(calls)
sys.setprofile(None)
with open(sys.argv[1], "w") as file:
    json.dump(statistics.median(steps[300:]), file)
"""


def test_a_calm_step_calls_few_functions_of_ours(tmp_path: Path) -> None:
    script, told = tmp_path / "train.py", tmp_path / "calls.json"
    script.write_text(SCRIPT)
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--quiet"]
    line += ["--set", "report.enabled=false", "--run-dir", str(tmp_path / "run")]

    done = subprocess.run([*line, str(script), str(told)], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    calls = json.loads(told.read_text())
    assert LAYERS < calls <= MOST + LAYERS, calls


def test_few_functions_are_called_to_judge_a_calm_step() -> None:
    draw = random.Random(0).gauss
    records = [
        StepRecord(
            step=step,
            loss=2.0 + draw(0.0, 0.05),
            grad_norm=1.0 + draw(0.0, 0.05),
            lr=1e-3,
            step_time_s=0.01,
            batch_size=16,
            memory_gib=1.0,
            clips_at=1.0,
            loss_seen=True,
            grad_norm_seen=True,
        )
        for step in range(40 * 32)
    ]
    pipeline, calls = Pipeline(RunSettings(), PolicySettings()), 0

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and "/supervisor/" in frame.f_code.co_filename

    for first in range(0, len(records), 32):
        sys.setprofile(count if first >= 20 * 32 else None)
        judgements = list(pipeline.update_all(records[first : first + 32]))
        sys.setprofile(None)
        assert all(judgement.is_calm for judgement in judgements)

    assert calls <= MOST_TO_JUDGE * 20 * 32, calls / (20 * 32)
