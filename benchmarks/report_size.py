"""Seconds and memory that the reading commands take for long runs with many observed names.

    python -m benchmarks.report_size [--size STEPSxNAMES ...] [--commands report list ...]
                                     [--folder KEPT] [--json FILE]

Each run is written by the real flight recorder and journal: two attempts (the second repeats the
last tenth of the first), a spike and a NaN, alerts, checkpoints. Then each command is a process of
its own; memory is the peak resident set that the kernel counted for it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from supervisor.records import StepRecord

SIZES = ("1000000x16", "100000x256")
BEGIN_S = 1_800_000_000.0
STEP_S = 0.02
COMMANDS = {
    "report": ("report", "RUN"),
    "watch": ("watch", "RUN", "--once"),
    "list": ("list", "FOLDER"),
    "export": ("export", "RUN", "--to", "csv"),
    "backtest": ("backtest", "RUN"),
}


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
        "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "exit_code": process.returncode,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", nargs="+", default=SIZES)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=tuple(COMMANDS))
    parser.add_argument("--folder", type=Path, help="made here and kept, instead of removed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    print(f"{'steps x names':>16} {'command':>9} {'s':>7} {'CPU s':>7} {'MiB':>6} {'exit':>5}")
    with tempfile.TemporaryDirectory() as folder:
        for size in options.size:
            runs = (options.folder or Path(folder)) / size
            if not runs.exists():
                # In another process: a child's peak begins at what its parent had in memory.
                code = "import sys; from benchmarks.report_size import make_run; from pathlib "
                code += "import Path; make_run(Path(sys.argv[1]), *map(int, sys.argv[2:]))"
                numbers = size.split("x")
                subprocess.run([sys.executable, "-c", code, runs / "run", *numbers], check=True)
            for name in options.commands:
                places = {"RUN": str(runs / "run"), "FOLDER": str(runs)}
                line = [places.get(word, word) for word in COMMANDS[name]]
                row = {"size": size, "command": name, **measure(line)}
                found.append(row)
                print(
                    f"{size:>16} {name:>9} {row['seconds']:7} {row['cpu_seconds']:7}"
                    f" {row['peak_mib']:6} {row['exit_code']:5}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
