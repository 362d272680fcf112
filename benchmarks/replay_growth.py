"""How the time to come back grows with the steps that a run has made, and how large its replay log
is.

    python -m benchmarks.replay_growth [--steps 2000 10000 50000] [--json FILE]

A small training (shuffling loader, dropout, an optimizer with state) is killed with SIGKILL 50
steps before its end, and resumed from 100 before. The time from the start of the second process to
the event `resumed` holds that process's start-up; the growth between two lengths does not. The same
of the CPU time of the second process, where other work shares the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

TRAINING = """
import resource
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = int(sys.argv[1])
torch.manual_seed(0); torch.set_num_threads(1)
X = torch.randn(512, 16); Y = X.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
step = 0
while step < steps:
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        step += 1
        if step >= steps:
            break
used = resource.getrusage(resource.RUSAGE_SELF)
open("cpu.txt", "w").write(str(used.ru_utime + used.ru_stime))
"""
BEFORE_END, LOST = 100, 50


def measure(folder: Path, steps: int) -> dict[str, Any]:
    """Runs one length; returns its row."""
    (folder / "train.py").write_text(TRAINING)
    run = folder / f"run_{steps}"
    settings = [
        "report.enabled=false",
        f"checkpoint.every_steps={steps - BEFORE_END}",
        f"faults=[{{kind: sigkill, step: {steps - LOST}}}]",
    ]
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--quiet", "--run-dir", str(run)]
    for setting in settings:
        line += ["--set", setting]
    subprocess.run(
        [*line, "train.py", str(steps)], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    events = [json.loads(text) for text in (run / "events.jsonl").read_text().splitlines()]
    begun = [event for event in events if event["kind"] == "attempt_started"][-1]
    (resumed,) = (event for event in events if event["kind"] == "resumed")
    return {
        "steps": steps,
        "exactness": resumed["exactness"],
        "replayed": resumed["replayed_steps"],
        "back_after_s": round(_time(resumed) - _time(begun), 2),
        "cpu_s": float((folder / "cpu.txt").read_text()),
        "tape_bytes_a_step": round(os.path.getsize(run / "tape" / "rank_0.tape") / steps),
    }


def _time(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[2_000, 10_000, 50_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| steps | resume | back after, s | growth a step, ms | CPU, ms | tape a step, bytes |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        for steps in sorted(options.steps):
            row = measure(Path(name), steps)
            growth = cpu = ""
            if rows:
                more = row["replayed"] - rows[-1]["replayed"]
                row["growth_ms"] = 1e3 * (row["back_after_s"] - rows[-1]["back_after_s"]) / more
                row["growth_cpu_ms"] = 1e3 * (row["cpu_s"] - rows[-1]["cpu_s"]) / more
                growth, cpu = f"{row['growth_ms']:.2f}", f"{row['growth_cpu_ms']:.2f}"
            rows.append(row)
            print(
                f"| {steps:,} | {row['exactness']} | {row['back_after_s']} | {growth} | {cpu} | "
                f"{row['tape_bytes_a_step']} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
