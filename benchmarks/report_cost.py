"""Processor seconds, memory and bytes of the report and the other reading commands.

    python -m benchmarks.report_cost [--size STEPSxNAMES ...] [--commands report list ...]
                                     [--folder KEPT] [--json FILE] [--images docs/images]

``--images`` makes the README's pictures of reports anew instead, see `make_images`.

Each run is written by the real flight recorder and journal: two attempts (the second repeats the
last tenth of the first), a spike and a NaN, alerts, checkpoints. Then each command is a process of
its own; memory is the peak resident set that the kernel counted for it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from supervisor.records import StepRecord

SIZES = ("400x8", "1000000x16", "100000x256")
BEGIN_S = 1_800_000_000.0
STEP_S = 0.02
COMMANDS = {
    "report": ("report", "RUN"),
    "pictures": ("report", "--pictures", "RUN"),
    "watch": ("watch", "RUN", "--once"),
    "list": ("list", "FOLDER"),
    "export": ("export", "RUN", "--to", "csv"),
    "backtest": ("backtest", "RUN"),
}


SUPERVISOR = [sys.executable, "-m", "supervisor.cli.main"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH, TALLEST = 1000, 4000  # pixels of the window: as wide as the page's text, taller than it
MARGIN = 22  # pixels of background that stay below the last section

DEMO = Path(__file__).parents[1] / "examples" / "char_lm.py"
FAULTS = "faults=[{kind: nan_data, step: 120},{kind: sigkill, step: 200}]"

RATE_JUMP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    optimizer.param_groups[0]["lr"] = 0.01 if step < 60 else 10.0  # the schedule goes wrong
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(1, keepdim=True) - 0.5 * torch.randn(32, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

NO_GUARD = """
import torch
torch.manual_seed(0)


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return self.mix((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16, bias=False)
        self.middle = Normalised()
        self.last = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.middle(self.first(x).relu()))


inputs = torch.randn(960, 8)
inputs[486] = 0.0  # an empty sample: all its features are alike, so it divides by zero
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in torch.utils.data.DataLoader(data, batch_size=8):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def make_run(root: Path, steps: int, names: int) -> None:
    """Writes the run directory `root`."""
    from supervisor.events.parsing import parse_event
    from supervisor.storage.journal.journal import Journal
    from supervisor.storage.run.run_state import RunState, save_run_state
    from supervisor.storage.run.rundir import RunDirectory
    from supervisor.storage.steps.flight_recorder import FlightRecorder

    rundir = RunDirectory(root)
    rundir.make(rundir.root)
    save_run_state(rundir, RunState(script="train.py", started_at=_iso(0), attempts=2))
    clock = [BEGIN_S]
    first_end, second_begin = steps // 2, steps // 2 - steps // 20
    for attempt, (begin, end) in enumerate(((0, first_end), (second_begin, steps)), start=1):
        journal = Journal(rundir.journal, attempt=attempt, rank=0, clock=lambda: clock[0])
        line: dict[str, Any] = {"kind": "attempt_started", "checkpoint_step": begin or None}
        journal.write(parse_event({**line, "step": begin}))
        if attempt == 2:
            line = {"kind": "resumed", "from_step": begin, "exactness": "exact"}
            journal.write(parse_event({**line, "step": begin}))
        recorder = FlightRecorder(rundir.steps(0), attempt)
        for step in range(begin, end):
            clock[0] += STEP_S
            recorder.append(_record(step, steps, names), time=clock[0], risk=0.02)
            if step % max(1, steps // 100) == 0:
                line = {"kind": "checkpoint_saved", "path": f"step_{step:08d}", "seconds": 0.1}
                journal.write(parse_event({**line, "step": step}))
        recorder.close()
        cause = "killed" if attempt == 1 else "completed"
        line = {"kind": "worker_exited", "cause": cause, "last_step": end - 1}
        journal.write(parse_event({**line, "step": end - 1}))
        journal.close()
    state = RunState(
        script="train.py",
        started_at=_iso(0),
        ended_at=_iso(clock[0] - BEGIN_S),
        attempts=2,
        state="completed",
        exit_code=0,
    )
    save_run_state(rundir, state)


def _record(step: int, steps: int, names: int) -> StepRecord:
    wave = math.sin(step * 0.7)
    loss = 2.0 + 2.0 * math.exp(-5.0 * step / steps) + 0.05 * wave
    if step == steps // 3:
        loss = 40.0
    return StepRecord(
        step=step,
        loss=math.nan if step == steps // 4 else loss,
        grad_norm=1.0 + 0.1 * wave,
        lr=1e-3,
        step_time_s=STEP_S,
        batch_size=8,
        memory_gib=1.0,
        loss_seen=True,
        grad_norm_seen=True,
        observed={f"value_{name}": name + wave for name in range(names)},
    )


def _iso(after_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(BEGIN_S + after_s))


def measure(arguments: list[str]) -> dict[str, float]:
    """Runs a command of `supervisor`; returns its seconds, seconds of processor and MiB at most."""
    line = [sys.executable, "-m", "supervisor.cli.main", *arguments]
    begin = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "seconds": round(time.perf_counter() - begin, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "exit_code": process.returncode,
    }


def run(folder: Path, script: str, *options: str) -> Path:
    """Trains `script` under supervision in `folder`; returns the run directory."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    run_dir = folder / "train"
    command = [*SUPERVISOR, "run", "--quiet", "--run-dir", str(run_dir), *options, "train.py"]
    subprocess.run(command, cwd=folder, check=False)
    return run_dir


def supervisor(command: str, run_dir: Path) -> None:
    subprocess.run([*SUPERVISOR, command, str(run_dir)], cwd=run_dir.parent, check=True)


def photograph(run_dir: Path, sections: list[str], target: Path, *, header: bool) -> None:
    """Writes what a browser shows of these sections of a report, in the light theme."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise SystemExit("no Chromium on this machine")
    kept = ", ".join(f"#{name}" for name in sections)
    style = f"main > *:not({kept}), footer {{ display: none; }}"
    style += "" if header else " header { display: none; }"
    page = (run_dir / "report" / "report.html").read_text(encoding="utf-8")
    part = run_dir.parent / "part.html"
    part.write_text(page.replace("</head>", f"<style>{style}</style></head>"), encoding="utf-8")
    shot = run_dir.parent / "part.png"
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-dev-shm-usage", "--hide-scrollbars", "--blink-settings=preferredColorScheme=1",
         f"--user-data-dir={run_dir.parent / 'profile'}", f"--window-size={WIDTH},{TALLEST}",
         f"--screenshot={shot}", part.as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip
    import matplotlib.image
    import numpy as np

    pixels = matplotlib.image.imread(shot)
    written = np.flatnonzero((pixels != pixels[-1, 0]).any(axis=(1, 2)))
    matplotlib.image.imsave(target, pixels[: written[-1] + MARGIN])


def make_images(into: Path) -> None:
    """Makes the README's pictures, from real runs, with a headless Chromium.

    ``overview.png`` is a picture of the report of ``make demo``'s training under attack; the two
    others show parts of a report's page: a learning rate that jumps, and an operation without a
    guard that `supervisor explain` finds.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        options = ("--set", "checkpoint.every_steps=50", "--set", FAULTS)
        demo = run(folder / "demo", DEMO.read_text(encoding="utf-8"), *options)
        shutil.copyfile(demo / "report" / "overview.png", into / "overview.png")

        jump = run(folder / "jump", RATE_JUMP)
        parts = ["next", "interventions", "curves"]
        photograph(jump, parts, into / "report_divergence.png", header=True)

        guard = run(folder / "guard", NO_GUARD)
        supervisor("explain", guard)
        supervisor("report", guard)
        parts = ["explain", "unhealthy", "gradient-flow"]
        photograph(guard, parts, into / "report_explain.png", header=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", nargs="+", default=SIZES)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=tuple(COMMANDS))
    parser.add_argument("--folder", type=Path, help="made here and kept, instead of removed")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="make these, measure nothing")
    options = parser.parse_args()
    if options.images:
        make_images(options.images.resolve())
        return
    found = []
    columns = ("s", "CPU s", "MiB", "page kB", "exit")
    print(f"{'steps x names':>16} {'command':>9}", *(f"{name:>7}" for name in columns))
    with tempfile.TemporaryDirectory() as folder:
        for size in options.size:
            runs = (options.folder or Path(folder)) / size
            if not runs.exists():
                # In another process: a child's peak begins at what its parent had in memory.
                code = "import sys; from benchmarks.report_cost import make_run; from pathlib "
                code += "import Path; make_run(Path(sys.argv[1]), *map(int, sys.argv[2:]))"
                numbers = size.split("x")
                subprocess.run([sys.executable, "-c", code, runs / "run", *numbers], check=True)
            for name in options.commands:
                places = {"RUN": str(runs / "run"), "FOLDER": str(runs)}
                line = [places.get(word, word) for word in COMMANDS[name]]
                row = {"size": size, "command": name, **measure(line)}
                page = runs / "run" / "report" / "report.html"
                row["page_kb"] = page.stat().st_size // 1000 if page.exists() else 0
                found.append(row)
                figures = ("seconds", "cpu_seconds", "peak_mib", "page_kb", "exit_code")
                print(f"{size:>16} {name:>9}", *(f"{row[key]:7}" for key in figures), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
