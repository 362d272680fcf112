"""How long a checkpoint holds up the training: its copy, and the steps beside its writing.

    python -m benchmarks.beside_writing [--batch 3] [--saves 12] [--json FILE]

One supervised training saves every 250 steps. What the 25 steps from there take longer than the
median step of the whole run is what the save costs; the same sum over 25 steps in the middle
between two saves, where nothing is written, says how much of that is chance. What is read back for
stability, 50 steps later, is not in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.overhead import SUPERVISOR, TRAINER

EVERY, BESIDE, BETWEEN = 250, 25, 150


def step_times(batch: int, saves: int, folder: Path) -> list[float]:
    """Seconds of each step of a supervised run with one save more than `saves`."""
    out = folder / "times.json"
    steps = EVERY * (saves + 2)
    line = [sys.executable, *SUPERVISOR, "--set", f"checkpoint.every_steps={EVERY}"]
    line += ["--run-dir", str(folder / "run"), str(TRAINER), "--batch", str(batch)]
    line += ["--turn-steps", str(steps), "--out", str(out)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    times: list[float] = json.loads(out.read_text())[0]
    return times


def held_up_ms(times: list[float], after_save: int) -> list[float]:
    """What the steps from `after_save` behind each save took longer than usual.

    The first save is left out: it makes the buffers of the copy.
    """
    usual = statistics.median(times)
    sums = []
    for save in range(2 * EVERY, len(times) - EVERY + 1, EVERY):
        first = save + after_save  # the save is made at the entry of this step's forward
        sums.append(1000.0 * sum(t - usual for t in times[first : first + BESIDE]))
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--saves", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = step_times(options.batch, options.saves, Path(folder))
    print(f"median step {1000.0 * statistics.median(times):.2f} ms, {options.saves} saves")
    document = {}
    for name, after in (("at a save", 0), ("between two saves", BETWEEN)):
        sums = held_up_ms(times, after)
        low, middle, high = statistics.quantiles(sums, n=4, method="inclusive")
        print(f"{name:20s} {middle:6.1f} ms longer  ({low:.1f} ... {high:.1f})")
        document[name] = sums
    if options.json:
        options.json.write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
