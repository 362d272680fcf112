"""Through how many files of `supervisor/worker/` the supervisor's flows go.

    python -m benchmarks.flows [--json FILE]

A real training is supervised, and killed once. `sys.setprofile`, switched on around single steps,
counts which files are entered: how many, in how many folders, and how often a call leads from one
file to another. What a page of the house should show (docs/design/house.md) is read off these
figures; they are no measure of time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import supervisor

WORKER = os.path.join(os.path.dirname(supervisor.__file__), "worker", "")

SCRIPT = """
import json, os, posix, sys, torch

WORKER, OUT = sys.argv[1:]
torch.manual_seed(0)
X = torch.randn(640, 8)
data = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=@workers)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def traced(step, call):
    files, moves, place = set(), 0, ""

    def enter(frame, event, argument):
        nonlocal moves, place
        if event == "call" and frame.f_code.co_filename.startswith(WORKER):
            file = frame.f_code.co_filename[len(WORKER):]
            moves += bool(place) and file != place
            files.add(file)
            place = file

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    line = {"step": step, "files": sorted(files), "moves": moves}
    descriptor = posix.open(OUT, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND, 0o600)
    posix.write(descriptor, (json.dumps({**line, "pid": posix.getpid()}) + "\\n").encode())
    posix.close(descriptor)


def train(step, inputs, targets):
    loss = (model(inputs) - targets).square().mean()
    if step == @nan:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


step = 0
for epoch in range(2):
    batches = iter(loader)
    for _ in range(len(loader)):
        def one():
            train(step, *next(batches))
        traced(step, one) if step in @traced else one()
        step += 1
"""
SAVE, KILL, CALM, NAN = 70, 76, 56, 60
ROLLBACK = "policy.by_cause={nonfinite: [rollback]}"


@dataclass(frozen=True)
class Flow:
    """One row of the table.

    Attributes:
        name: as people say it.
        attempt: the first, or the one after the kill.
        step: of the training's loop, in which it happens.
        workers: of the loader.
        nan: the step whose loss is not a number; -1 for none.
        settings: of the run.
    """

    name: str
    attempt: int
    step: int
    workers: int = 0
    nan: int = -1
    settings: tuple[str, ...] = ()


FLOWS = (
    Flow("a calm step", 1, CALM),
    Flow("a NaN loss: the update is left out", 1, NAN, nan=NAN),
    Flow("a NaN loss: rollback at the next boundary", 1, NAN + 1, nan=NAN, settings=(ROLLBACK,)),
    Flow("a save", 1, SAVE),
    Flow("a replayed step", 2, CALM),
    Flow("a replayed step, two loader workers", 2, CALM, workers=2),
    Flow("arrival", 2, SAVE),
    Flow("arrival, two loader workers", 2, SAVE, workers=2),
)


def measure(flow: Flow, folder: Path) -> dict[str, Any]:
    """Supervises the training once; returns the row of its table."""
    folder.mkdir()
    script, out = folder / "train.py", folder / "entered.jsonl"
    values = {"workers": flow.workers, "nan": flow.nan, "traced": (flow.step,)}
    text = SCRIPT
    for name, value in values.items():
        text = text.replace(f"@{name}", str(value))
    script.write_text(text)
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", str(folder / "run")]
    for setting in (
        "report.enabled=false",
        f"checkpoint.every_steps={SAVE}",
        "checkpoint.background=false",
        f"faults=[{{kind: sigkill, step: {KILL}}}]",
        *flow.settings,
    ):
        line += ["--set", setting]
    subprocess.run([*line, str(script), WORKER, str(out)], check=True, capture_output=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    attempts = list(dict.fromkeys(row["pid"] for row in rows))
    row = next(row for row in rows if row["pid"] == attempts[flow.attempt - 1])
    folders = {os.path.dirname(file) for file in row["files"]}
    return {
        "flow": flow.name,
        "files": len(row["files"]),
        "folders": len(folders),
        "moves": row["moves"],
        "names": row["files"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = [measure(flow, Path(temporary) / str(n)) for n, flow in enumerate(FLOWS)]
    print(f"{'flow':44}{'files':>7}{'folders':>9}{'moves':>7}")
    for row in rows:
        print(f"{row['flow']:44}{row['files']:7}{row['folders']:9}{row['moves']:7}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
