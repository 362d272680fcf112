"""What supervision costs a step: the same script plain and supervised, turn about, in one sitting.

    python -m benchmarks.overhead [--rounds 3] [--ms 2 5 50] [--bare] [--cpu] [--json FILE]
    python -m benchmarks.overhead --ms 5 20 --young 2000
    python -m benchmarks.overhead --ms 5 --beside reads tensorboard wandb lightning

A round starts the script plain and supervised. They take turns of 64 steps, while the others wait,
and each pair of turns gives a ratio of mean steps: turns so short see the same machine, however its
speed changes from minute to minute, and each holds all that supervision does every few steps. The
first steps of a turn, which fill the processor's caches again, are left out, and so are the first
turns, while a young run is looked at more closely. While a training waits, the clock by which
supervision does things stands still. Medians and quartiles are over the pairs of all rounds;
`typical` is the ratio of the turns' median steps, without what is done every few steps. At 5 ms one
more takes part: the plain script again, which says how much of a figure is chance. `--young N`
counts the first N steps instead, the very first included: sums of whole rounds. `--beside` lets
what people accept take part, unsupervised: a read of loss and norm a step, three values to
TensorBoard or to W&B offline, Lightning's loop. `--cpu` compares the CPU time of the processes, all
their threads included, where other work shares the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pipeline_cost import measure_pipeline_us

TRAINER = Path(__file__).with_name("timed_trainer.py")
TURN = 64
COLD_STEPS = 4
TURNS = {2.0: 30, 5.0: 24, 10.0: 16, 20.0: 12, 50.0: 8}
LAYERS = {2.0: 1, 5.0: 2, 10.0: 2, 20.0: 2, 50.0: 2}
WARM_UP_TURNS = {2.0: 32, 5.0: 32, 10.0: 16, 20.0: 8, 50.0: 4}
KINDS = {
    "supervised": [],
    "plain again": [],
    "reads": ["--log", "reads"],
    "tensorboard": ["--log", "tensorboard"],
    "wandb": ["--log", "wandb"],
    "lightning": ["--lightning"],
}
"""Who takes part beside the plain script, and with which of its options."""
SUPERVISOR = ["-m", "supervisor.cli.main", "run", "--quiet", "--set", "report.enabled=false"]


@dataclass(frozen=True, slots=True)
class Workload:
    """The script with steps of about `target_ms`."""

    target_ms: float
    batch: int
    cpu: bool = False
    young: int = 0

    def turns(self) -> int:
        return (
            -(-self.young // TURN)
            if self.young
            else TURNS[self.target_ms] + WARM_UP_TURNS[self.target_ms]
        )

    def options(self, turns: int) -> list[str]:
        return [
            *("--batch", str(self.batch), "--layers", str(LAYERS[self.target_ms])),
            *("--turns", str(turns), "--turn-steps", str(TURN)),
            *(["--cpu"] if self.cpu else []),
        ]


class Player:
    """One process of the script that waits for its turns."""

    def __init__(self, workload: Workload, turns: int, folder: Path, kind: str) -> None:
        folder.mkdir()
        self._out = folder / "times.json"
        go, done = folder / "go", folder / "done"
        os.mkfifo(go)
        os.mkfifo(done)
        line = [sys.executable]
        if kind == "supervised":
            line += [*SUPERVISOR, "--run-dir", str(folder / "run")]
        line += [str(TRAINER), *workload.options(turns), "--out", str(self._out)]
        line += ["--go", str(go), "--done", str(done), *KINDS.get(kind, ())]
        self._process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
        self._go = os.open(go, os.O_WRONLY)
        self._done = os.open(done, os.O_RDONLY)

    def play(self) -> None:
        os.write(self._go, b".")
        if os.read(self._done, 1) != b".":
            raise RuntimeError(f"the script ended early, with {self._process.wait()}")

    def times(self) -> list[list[float]]:
        """Seconds of each step, by turn. Waits for the end of the process."""
        self._process.wait()
        return list(json.loads(self._out.read_text()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._go)
        os.close(self._done)


def play_round(workload: Workload, folder: Path, kinds: Sequence[str]) -> list[list[list[float]]]:
    """The steps, by turn, of one process for each of `kinds`."""
    turns = workload.turns()
    with ExitStack() as stack:
        players = []
        for index, kind in enumerate(kinds):
            player = Player(workload, turns, folder / str(index), kind)
            stack.callback(player.close)
            players.append(player)
        for turn in range(turns):
            first = turn % len(players)
            for player in (*players[first:], *players[:first]):
                player.play()
        return [_counted(workload, player.times()) for player in players]


def _counted(workload: Workload, turns: list[list[float]]) -> list[list[float]]:
    """The turns that count: all steps of a young run as one, else those after the warm-up."""
    if workload.young:
        return [[seconds for times in turns for seconds in times]]
    return [times[COLD_STEPS:] for times in turns[WARM_UP_TURNS[workload.target_ms] :]]


def batch_for(target_ms: float, folder: Path) -> int:
    """The batch size whose plain step takes about `target_ms`."""
    costs = []
    for batch in (1, 32):
        out = folder / f"batch_{batch}.json"
        line = [*Workload(target_ms, batch, young=1).options(turns=2), "--out", str(out)]
        subprocess.run([sys.executable, str(TRAINER), *line], check=True)
        costs.append(1000.0 * statistics.median(json.loads(out.read_text())[-1]))
    slope = max((costs[1] - costs[0]) / 31.0, 1e-3)
    return max(1, round(1 + (target_ms - costs[0]) / slope))


def compare(
    workload: Workload, rounds: int, folder: Path, kinds: Sequence[str]
) -> dict[str, dict[str, float]]:
    """The steps of `kinds` beside plain ones, and the quartiles of their ratios."""
    turns: dict[str, list[list[float]]] = {kind: [] for kind in ("plain", *kinds)}
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            for kind, times in zip(turns, play_round(workload, Path(place), [*turns]), strict=True):
                turns[kind] += times
        print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return {kind: _row(workload, turns["plain"], turns[kind]) for kind in kinds}


def _row(
    workload: Workload, plain: list[list[float]], other: list[list[float]]
) -> dict[str, float]:
    pairs = list(zip(other, plain, strict=True))
    ratios = [statistics.mean(o) / statistics.mean(p) for o, p in pairs]
    low, middle, high = statistics.quantiles([*ratios, *ratios], n=4, method="inclusive")
    typical = [statistics.median(o) / statistics.median(p) for o, p in pairs]
    return {
        "target_ms": workload.target_ms,
        "plain_ms": 1000.0 * statistics.median(map(statistics.mean, plain)),
        "other_ms": 1000.0 * statistics.median(map(statistics.mean, other)),
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
        "typical_ratio": statistics.median(typical),
        "pairs": len(pairs),
    }


def show(name: str, row: dict[str, float]) -> None:
    keys = ("ratio", "ratio_low", "ratio_high", "typical_ratio")
    middle, low, high, typical = (100.0 * (row[key] - 1.0) for key in keys)
    print(
        f"{name:22s} {row['plain_ms']:8.2f} {row['other_ms']:10.2f}"
        f"     {middle:+.1f} % ({low:+.1f} ... {high:+.1f})    {typical:+.1f} %",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ms", type=float, nargs="+", choices=list(TURNS), default=list(TURNS))
    parser.add_argument(
        "--bare", action="store_true", help="nothing but plain and supervised at 5 ms, too"
    )
    parser.add_argument("--young", type=int, default=0, help="count the first steps, so many")
    parser.add_argument("--beside", nargs="+", choices=[*KINDS][2:], default=[])
    parser.add_argument("--cpu", action="store_true", help="CPU time of the processes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    loads = [os.getloadavg()[0]]
    print("step                   plain ms      other  mean step (quartiles)      typical step")
    with tempfile.TemporaryDirectory() as folder:
        for target in options.ms:
            again = target == 5.0 and not options.bare and not options.young
            kinds = ["supervised", *(["plain again"] if again else []), *options.beside]
            workload = Workload(target, batch_for(target, Path(folder)), options.cpu, options.young)
            found = compare(workload, options.rounds, Path(folder), kinds)
            found = {f"{target:g} ms {kind}": row for kind, row in found.items()}
            for name, row in found.items():
                show(name, row)
            rows |= found
    pipeline_us = measure_pipeline_us()
    print(f"pipeline: {pipeline_us:.1f} us a step (all default detectors, predictor, ladder)")
    if options.json:
        figures = {"steps": rows, "pipeline_us": pipeline_us, "loads": [*loads, os.getloadavg()[0]]}
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
