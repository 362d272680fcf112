"""What commands cost that people wait for: seconds of processor and of wall, the best of some.

`python -m benchmarks.commands` makes a run of its own; RUN measures that of yours.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from supervisor.records import StepRecord
from supervisor.storage.run.run_state import RunState, save_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder

LINES = {
    "--help": 0.15,
    "run --help": 0.15,
    "runs FOLDER": 0.5,
    "watch RUN --once": 0.7,
    "report RUN --format json": 1.5,
    "report RUN": None,
}
"""Command → seconds of processor that it may take; None: no goal. On a machine with nothing else to
do the wall is about that; on a busy one it says more of the machine."""
STEPS = 400
TIMES = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", help="default: one of 400 steps, made now")
    parser.add_argument("--times", type=int, default=TIMES)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or made_run(Path(folder) / "runs" / "a")
        print(f"{'command':<28}{'wall s':>8}{'CPU s':>8}    goal")
        missed = False
        for line, goal_s in LINES.items():
            words = line.replace("RUN", str(run)).replace("FOLDER", str(run.parent)).split()
            cpu_s, wall_s = min(measured(words) for _ in range(args.times))
            is_missed = goal_s is not None and cpu_s > goal_s
            missed |= is_missed
            told = "" if goal_s is None else f"{goal_s:.2f}{' missed' if is_missed else ''}"
            print(f"{line:<28}{wall_s:>8.2f}{cpu_s:>8.2f}    {told}", flush=True)
    return int(missed)


def made_run(path: Path) -> Path:
    """Returns a completed run of `STEPS` steps."""
    rundir = RunDirectory(path)
    rundir.make(rundir.steps(0).parent)
    save_run_state(rundir, RunState(state="completed", script="train.py"))
    recorder = FlightRecorder(rundir.steps(0), attempt=1)
    for step in range(STEPS):
        record = StepRecord(step=step, loss=2.0 / (step + 1), loss_seen=True)
        recorder.append(record, time=1000.0 + step, risk=0.1)
    recorder.close()
    return path


def measured(words: list[str]) -> tuple[float, float]:
    """Returns seconds of processor and of wall."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "supervisor.cli.main", *words],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "NO_COLOR": "1"},
        check=True,
    )
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used_s, wall_s


if __name__ == "__main__":
    sys.exit(main())
