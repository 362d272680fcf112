"""What supervision costs a step in all processes of a training: loader workers, several ranks.

    python -m benchmarks.tree_cost [--kinds workers persistent augmented stream alone ranks]
                                   [--ranks 4] [--rounds 3] [--turns 12] [--json FILE]

The same script plain (of several ranks, by torchrun) and supervised take turns of 64 steps, while
the other waits, as in `benchmarks.overhead`. Before and after each turn the CPU time of all
processes of each is read: of the training, its loader workers, the ranks, and the parent and the
agent. So the load of the machine does not matter. `added` is CPU time that a step costs more in
all of these together, the median of the pairs of turns, with its quartiles; of several ranks
`per core` is that, divided by the cores, for which they wait. The first turns warm up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.tree_trainer import KINDS

TRAINER = Path(__file__).with_name("tree_trainer.py")
TURN = 64
WARM_UP_TURNS = 6
SUPERVISOR = ["-m", "supervisor.cli.main", "run", "--quiet", "--set", "report.enabled=false"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone"]


def cpu_s(root: int) -> dict[str, float]:
    """CPU time so far of a process and all below it: of main threads by what they are, of other
    threads (gloo's); ended children count for the process that has waited for them, in hundredths
    of a second."""
    found: dict[str, float] = {}
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        with contextlib.suppress(psutil.Error, OSError):
            times = process.cpu_times()
            used = time.clock_gettime((~process.pid << 3) | 2)  # its clock, to the nanosecond
            main = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat").read_text()
            main_s = 1e-9 * int(main.split()[0])
            name = _role(process)
            found[name] = found.get(name, 0.0) + main_s
            found["threads"] = found.get("threads", 0.0) + used - main_s
            found["ended"] = found.get("ended", 0.0) + times.children_user + times.children_system
    return found


def _role(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    if "supervisor.worker" in line or (TRAINER.name in line and "-m " not in line):
        above = process.parent()
        same = above is not None and above.cmdline() == process.cmdline()
        return "loader workers" if same else "training"
    return "others"


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    ranks: int
    batch: int
    settings: tuple[str, ...]

    def line(self, folder: Path, turns: int, *, is_supervised: bool) -> list[str]:
        several = ["--nproc-per-node", str(self.ranks)] if self.kind == "ranks" else []
        line = [sys.executable]
        if is_supervised:
            line += [*SUPERVISOR, "--run-dir", str(folder / "run"), *several]
            for setting in self.settings:
                line += ["--set", setting]
        elif several:
            line += [*TORCHRUN, *several]
        line += [str(TRAINER), "--kind", self.kind, "--batch", str(self.batch)]
        line += ["--turns", str(turns), "--turn-steps", str(TURN)]
        return [*line, "--go", str(folder / "go"), "--done", str(folder / "done")]


class Player:
    """One training that waits for its turns."""

    def __init__(self, case: Case, folder: Path, turns: int, *, is_supervised: bool) -> None:
        folder.mkdir()
        for name in ("go", "done"):
            os.mkfifo(folder / name)
        line = case.line(folder, turns, is_supervised=is_supervised)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TRAINER.parents[1])}
        self._process = subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment)
        self._go = os.open(folder / "go", os.O_WRONLY)
        self._done = os.open(folder / "done", os.O_RDONLY)

    def play(self) -> tuple[float, dict[str, float]]:
        """Seconds on the wall and CPU seconds, by process, of one turn."""
        before, began = cpu_s(self._process.pid), time.perf_counter()
        os.write(self._go, b".")
        if os.read(self._done, 1) != b".":
            raise RuntimeError(f"the script ended early, with {self._process.wait()}")
        took, after = time.perf_counter() - began, cpu_s(self._process.pid)
        return took, {
            name: after.get(name, 0.0) - before.get(name, 0.0) for name in {*before, *after}
        }

    def end(self) -> None:
        if code := self._process.wait():
            raise RuntimeError(f"the script ended with {code}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._go)
        os.close(self._done)


Turn = tuple[float, dict[str, float]]


def play_round(case: Case, folder: Path, turns: int) -> list[tuple[Turn, Turn]]:
    """Pairs of turns, supervised and plain, without those that warm up."""
    with ExitStack() as stack:
        players = []
        for name in ("supervised", "plain"):
            is_supervised = name == "supervised"
            player = Player(case, folder / name, turns, is_supervised=is_supervised)
            stack.callback(player.close)
            players.append(player)
        pairs = []
        for turn in range(turns):
            order = (0, 1) if turn % 2 else (1, 0)
            found = {place: players[place].play() for place in order}
            pairs.append((found[0], found[1]))
        for player in players:
            player.end()
        return pairs[WARM_UP_TURNS:]


def row_of(case: Case, pairs: list[tuple[Turn, Turn]]) -> dict[str, Any]:
    """Milliseconds a step."""

    def ms(turn: Turn) -> float:
        return 1000.0 * sum(turn[1].values()) / TURN

    added = [ms(ours) - ms(plain) for ours, plain in pairs]
    low, middle, high = statistics.quantiles(added, n=4, method="inclusive")
    names = sorted({name for pair in pairs for turn in pair for name in turn[1]})
    by_process = {
        name: 1000.0
        / TURN
        * statistics.median(a[1].get(name, 0.0) - b[1].get(name, 0.0) for a, b in pairs)
        for name in names
    }
    row = {
        "kind": case.kind,
        "plain_cpu_ms": statistics.median(ms(plain) for _, plain in pairs),
        "added_cpu_ms": middle,
        "low": low,
        "high": high,
        "mean": statistics.mean(added),
        "added_by_process_ms": by_process,
        "plain_wall_ms": 1000.0 / TURN * statistics.median(plain[0] for _, plain in pairs),
        "added_wall_ms": 1000.0 / TURN * statistics.median(a[0] - b[0] for a, b in pairs),
        "pairs": len(pairs),
    }
    if case.kind == "ranks":
        row |= {"ranks": case.ranks, "per_core_ms": middle / (os.cpu_count() or 1)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=12, help="that count, of each round")
    parser.add_argument("--set", action="append", default=[], help="setting of the supervised one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(
        "kind         plain CPU ms    added CPU ms (quartiles)   per core   wall, plain and added"
    )
    for kind in options.kinds:
        case = Case(kind, options.ranks, options.batch, tuple(options.set))
        pairs = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as name:
                pairs += play_round(case, Path(name), WARM_UP_TURNS + options.turns)
        row = row_of(case, pairs)
        rows.append(row)
        core = f"{row['per_core_ms']:+.2f}" if "per_core_ms" in row else ""
        print(
            f"{kind:12s} {row['plain_cpu_ms']:12.2f}    {row['added_cpu_ms']:+8.2f}"
            f" ({row['low']:+.2f} ... {row['high']:+.2f}) {core:>14s}"
            f" {row['plain_wall_ms']:12.2f} {row['added_wall_ms']:+.2f}\n"
            f"    {', '.join(f'{n} {v:+.2f}' for n, v in row['added_by_process_ms'].items())}",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
