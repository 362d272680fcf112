"""What a killed rank costs: from the kill to the next new step, beside torchrun's own restart.

    python -m benchmarks.ranks_restart [--pairs 3] [--sizes] [--json FILE]

In turns: `torchrun --max-restarts 1` with a script that saves every 50 steps, and the same script
without a save of its own under `supervisor run`. One of two ranks is killed 40 steps behind the
script's last save. A *new* step is one that was not made before the kill. ``--sizes``: bytes of a
checkpoint, by kind of parallelism and number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rank_runs import TRAINER
from benchmarks.ranks import MODES

RESTARTED = Path(__file__).with_name("ranks_restart_trainer.py")
STEPS, KILL_AT, SAVE_EVERY = 120, 89, 50
TIMEOUT_S = 300.0


def _run(line: list[str]) -> None:
    # Without the second, three of four restarts of torchrun itself fail (pytorch #135712).
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", *line],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{line[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def restart(*, supervised: bool) -> dict[str, Any]:
    """Returns the seconds from the kill to the next new step, and how many were made again."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(RESTARTED), str(STEPS), str(KILL_AT)]
        if supervised:
            line = ["supervisor.cli.main", "run", "--quiet", "--run-dir", f"{folder}/run"]
            line += ["--nproc-per-node", "2", "--set", "report.enabled=false"]
            _run([*line, *words, "0", folder])
        else:
            line = ["torch.distributed.run", "--standalone", "--max-restarts", "1"]
            _run([*line, "--nproc-per-node", "2", *words, str(SAVE_EVERY), folder])
        killed = float(Path(folder, ".killed.txt").read_text())
        lines = [text.split() for text in Path(folder, ".steps.txt").read_text().splitlines()]
        after = [(int(step), float(when)) for step, when in lines if float(when) > killed + 0.5]
        new = min(when for step, when in after if step > KILL_AT)
        if supervised:
            journal = Path(folder, "run", "events.jsonl").read_text().splitlines()
            events = [json.loads(text) for text in journal]
            start = max(e["from_step"] for e in events if e["kind"] == "resumed")
        else:
            start = min(step for step, _ in after)
        return {"seconds": new - killed, "again": KILL_AT + 1 - start}


def measure_restarts(pairs: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {"torchrun": [], "supervisor": []}
    for _ in range(pairs):
        found["torchrun"].append(restart(supervised=False))
        found["supervisor"].append(restart(supervised=True))
    return {
        name: {
            "median_s": statistics.median(one["seconds"] for one in runs),
            "steps_again": [one["again"] for one in runs],
            "seconds": [one["seconds"] for one in runs],
        }
        for name, runs in found.items()
    }


def measure_sizes() -> list[dict[str, Any]]:
    """Bytes of a checkpoint and of each rank's part of it."""
    found = []
    for mode in MODES:
        for ranks in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                line = ["supervisor.cli.main", "run", "--quiet", "--run-dir", f"{folder}/run"]
                line += ["--nproc-per-node", str(ranks), "--set", "report.enabled=false"]
                line += ["--set", "checkpoint.every_steps=10"]
                _run([*line, str(TRAINER), mode, "16", folder])
                (path,) = Path(folder, "run", "checkpoints").glob("step_00000010")
                parts = {
                    part.name: sum(file.stat().st_size for file in part.iterdir())
                    for part in sorted(path.glob("rank_*"))
                }
                found.append({"mode": mode, "ranks": ranks, "bytes": sum(parts.values()), **parts})
                print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.pairs:
        result["restarts"] = measure_restarts(options.pairs)
        print(json.dumps(result["restarts"], indent=1), flush=True)
    if options.sizes:
        result["sizes"] = measure_sizes()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
