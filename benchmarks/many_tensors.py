"""What supervision costs a model of many parameter tensors, plain and supervised in turns.

    python -m benchmarks.many_tensors [--tensors 500 5000 20000:500] [--turns 6] [--clip]
                                      [--json FILE]

`N:M` has N tensors, of which each step uses M. All figures are CPU time of the whole process, which
other work on the machine moves little: what is added in the first 20 steps, and then to a step:
`typical` between the median steps of a pair of turns, `mean` with what is done every few steps; the
median over the pairs. Without `--clip` the script does not clip, and the gradients' norm is ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.many_tensors_trainer import FIRST_STEPS

TRAINER = Path(__file__).with_name("many_tensors_trainer.py")
TURN_STEPS = {1000: 60, 10_000: 12, 100_000: 6}
"""Steps of a turn, by the tensors used up to which it holds."""
SUPERVISOR = [
    *("-m", "supervisor.cli.main", "run", "--quiet", "--set", "report.enabled=false"),
    *("--set", "watchdog.hang_timeout_s=3600"),  # it waits for its turns
]


class Player:
    """One process of the training that waits for its turns."""

    def __init__(self, options: list[str], folder: Path, *, supervised: bool) -> None:
        folder.mkdir()
        self._out, go, done = folder / "times.json", folder / "go", folder / "done"
        os.mkfifo(go)
        os.mkfifo(done)
        line = [sys.executable]
        if supervised:
            line += [*SUPERVISOR, "--run-dir", str(folder / "run")]
        line += [str(TRAINER), *options, "--out", str(self._out)]
        self._process = subprocess.Popen([*line, "--go", str(go), "--done", str(done)])
        self._go = os.open(go, os.O_WRONLY)
        self._done = os.open(done, os.O_RDONLY)

    def play(self) -> None:
        os.write(self._go, b".")
        if os.read(self._done, 1) != b".":
            raise RuntimeError(f"the training ended early, with {self._process.wait()}")

    def turns(self) -> list[list[float]]:
        """CPU seconds of each step, by turn. Waits for the end of the process."""
        self._process.wait()
        turns: list[list[float]] = json.loads(self._out.read_text())
        return turns

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._go)
        os.close(self._done)


def measure(tensors: int, used: int, turns: int, folder: Path, *, clips: bool) -> dict[str, float]:
    """Milliseconds of CPU time: plain, and what is added to them."""
    steps = next(steps for most, steps in TURN_STEPS.items() if used <= most)
    options = ["--tensors", str(tensors), "--used", str(used), *(["--clip"] if clips else [])]
    options += ["--turns", str(turns), "--turn-steps", str(steps)]
    with ExitStack() as stack:
        players = []
        for name, supervised in (("plain", False), ("supervised", True)):
            players.append(Player(options, folder / name, supervised=supervised))
            stack.callback(players[-1].close)
        for turn in range(1 + turns):
            for player in players if turn % 2 else players[::-1]:
                player.play()
        plain, ours = (player.turns() for player in players)
    pairs = list(zip(plain[1:], ours[1:], strict=True))
    added = [1e3 * (statistics.fmean(o) - statistics.fmean(p)) for p, o in pairs]
    typical = [1e3 * (statistics.median(o) - statistics.median(p)) for p, o in pairs]
    return {
        "tensors": tensors,
        "used": used,
        "clips": clips,
        "plain_ms": 1e3 * statistics.median(map(statistics.median, plain[1:])),
        "typical_added_ms": statistics.median(typical),
        "mean_added_ms": statistics.fmean(added),
        "first_steps": FIRST_STEPS,
        "first_steps_plain_ms": 1e3 * sum(plain[0]),
        "first_steps_added_ms": 1e3 * (sum(ours[0]) - sum(plain[0])),
        "steps": steps * turns,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", nargs="+", default=["500", "5000", "20000:500"])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--clip", action="store_true", help="the script clips its gradients")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print("tensors   used   plain ms  typical     mean added ms  first 20 steps: plain, added ms")
    for shape in options.tensors:
        tensors, _, used = shape.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            row = measure(
                int(tensors), int(used or tensors), options.turns, Path(folder), clips=options.clip
            )
        rows.append(row)
        print(
            f"{row['tensors']:7d} {row['used']:6d} {row['plain_ms']:10.2f} "
            f"{row['typical_added_ms']:+8.2f} {row['mean_added_ms']:+8.2f} "
            f"{row['first_steps_plain_ms']:26.0f} {row['first_steps_added_ms']:+8.0f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
