"""What failures cost a training of 1,000 and 10,000 ranks: drawn from published rates, not run.

    python -m benchmarks.ranks_simulation [--ranks 1000 10000] [--days 90] [--json FILE]

Nothing here starts a rank. Failures come at the rate that was published for a large run; what each
costs comes from `Costs`, whose values were measured on one node with a few ranks, or are said to be
assumed. Goodput is the share of the time that went into steps which count in the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.parent.watching.rank_watch import RankWatch
from supervisor.storage.checkpoints.manifest import Checkpoint
from supervisor.storage.checkpoints.parts import part_path, publish_part, read_part, take_part
from supervisor.storage.files.file_system import FileSystem
from supervisor.storage.run.rundir import RunDirectory

FAILURES, DAYS, ACCELERATORS = 419, 54, 16_384
"""Unexpected interruptions of Llama 3's pre-training (Grattafiori et al. 2024, section 3.3.4)."""
LOOKS_A_SECOND = 5
"""Of the parent at all ranks."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds, unless a name says otherwise.

    Attributes:
        step: of the training; assumed.
        save_stall: the training stands still for a copy of the state at each save; assumed: 10 GiB
            a rank at 10 GiB/s.
        save_every: between two saves; assumed.
        keep: a copy into memory that outlives the rank: as `save_stall`, the same bytes.
        keep_share: of the time that may go into it (`parting.max_overhead`).
        notice: until all ranks have ended (measured with gloo: 0.4, and 5 for last words).
        rescue: to write what was kept (measured: 1 to 3 for small states, torch's import included),
            and its bytes at 1 GiB/s on each node's way to the disk; assumed.
        start: imports, rendezvous, compilation and warm-up at this size; assumed.
        replayed_step: of the fast-forward (measured: 0.0005 for a tiny script with a loader).
        steps_before: steps that the run already has; a replay goes over all of them.
        memory_survives: share of failures that leave every node's memory: a process, a library, a
            driver, and not a node, its network or its power; assumed.
    """

    step: float = 5.0
    save_stall: float = 1.0
    save_every: float = 600.0
    keep: float = 1.0
    keep_share: float = 0.005
    notice: float = 5.0
    rescue: float = 15.0
    start: float = 180.0
    replayed_step: float = 0.0005
    steps_before: int = 100_000
    memory_survives: float = 0.5

    @property
    def keep_every(self) -> float:
        return max(self.step, self.keep / self.keep_share)


def mean_time_between_failures_s(ranks: int) -> float:
    return DAYS * 86_400 * ACCELERATORS / (FAILURES * ranks)


WAYS = ("saves only", "kept", "live")
"""Where a failure goes back to: the last common checkpoint; a copy in memory that outlives the
ranks, where it is there; the live state of ranks that survive, which is not built: it costs nothing
before, and loses the step under way."""


def simulate(ranks: int, costs: Costs, way: str, *, days: float, seed: int = 1) -> dict[str, Any]:
    """Returns what came of `days` of wall time; failures also strike during a restart.

    Args:
        ranks: that train together: one failure ends all.
        costs: of everything.
        way: one of `WAYS`.
        days: of wall time.
        seed: of the draws.
    """
    draw, mean = random.Random(seed), mean_time_between_failures_s(ranks)
    left, useful, since_disk, since_kept = days * 86_400, 0.0, 0.0, 0.0
    overhead = costs.save_stall / costs.save_every
    if way == "kept":
        overhead += costs.keep / costs.keep_every
    failures, lost, down = 0, 0.0, 0.0
    restart = costs.notice + costs.start + costs.replayed_step * costs.steps_before
    while left > 0:
        run = min(draw.expovariate(1 / mean), left)
        left -= run
        work = run / (1 + overhead)
        since_disk = (since_disk + work) % costs.save_every
        since_kept = (since_kept + work) % (costs.keep_every if way == "kept" else costs.step)
        useful += work
        if left <= 0:
            break
        failures += 1
        survives = way != "saves only" and draw.random() < costs.memory_survives
        gone = min(since_kept if survives else since_disk, since_disk, useful)
        useful, lost = useful - gone, lost + gone
        since_disk, since_kept = 0.0, 0.0  # what was rescued is on disk
        pause = restart + (costs.rescue if survives else 0.0)
        while (until := draw.expovariate(1 / mean)) < pause and left > 0:
            left, down = left - until, down + until  # it fails again before it has come back
        left, down = left - pause, down + pause
    wall = days * 86_400
    return {
        "ranks": ranks,
        "way": way,
        "hours_between_failures": mean / 3600,
        "failures": failures,
        "lost_steps_a_failure": lost / costs.step / max(1, failures),
        "lost": lost / wall,
        "down": down / wall,
        "goodput": useful / wall,
    }


def measure_parent(ranks: int = 64, looks: int = 20) -> float:
    """Microseconds that the parent needs for one look at one rank that has nothing new."""
    with tempfile.TemporaryDirectory() as folder:
        watches = [RankWatch(RunDirectory(Path(folder)), rank) for rank in range(ranks)]
        began = time.process_time()
        for _ in range(looks):
            for watch in watches:
                watch.life.has_moved()
                watch.feed.take()
        return (time.process_time() - began) / ranks / looks * 1e6


def measure_joining(parts: int = 64) -> float:
    """Milliseconds in which the first rank takes one small part of another rank."""
    with tempfile.TemporaryDirectory() as name:
        folder, disk = Path(name), FileSystem()
        for rank in range(1, parts + 1):
            planned = Checkpoint(step=1, path=part_path(folder, 1, 1, rank))
            publish_part(disk, folder, planned, (1, rank), _small_part)
        began = time.perf_counter()
        for rank in range(1, parts + 1):
            part = read_part(disk, part_path(folder, 1, 1, rank), 1)
            assert part is not None
            take_part(disk, part, folder / f"rank_{rank}")
        return (time.perf_counter() - began) / parts * 1e3


def _small_part(folder: Path) -> None:
    (folder / "state.pt").write_bytes(b"x" * 10_000)


def limits(costs: Costs, parent_us: float, joining_ms: float) -> dict[str, float]:
    """At how many ranks, or steps, a part of the design no longer holds."""
    replay = costs.replayed_step * costs.steps_before
    pause = costs.notice + costs.start + replay
    return {
        "ranks_whose_watching_takes_a_core": 1e6 / (parent_us * LOOKS_A_SECOND),
        "ranks_whose_parts_take_the_save_interval": costs.save_every * 1e3 / joining_ms,
        "ranks_at_which_half_the_time_is_restarts": DAYS * 86_400 * ACCELERATORS / FAILURES / pause,
        "steps_at_which_the_replay_takes_an_hour": 3600 / costs.replayed_step,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--days", type=float, default=90.0)
    parser.add_argument("--json", type=Path)
    for field in dataclasses.fields(Costs):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=type(field.default), default=field.default)
    options = parser.parse_args()
    costs = Costs(**{f.name: getattr(options, f.name) for f in dataclasses.fields(Costs)})
    rows = [
        simulate(ranks, costs, way, days=options.days) for ranks in options.ranks for way in WAYS
    ]
    print("ranks   between failures  goes back to  steps lost a failure  lost    down    goodput")
    for row in rows:
        print(
            f"{row['ranks']:6d}  {row['hours_between_failures']:14.1f} h"
            f"  {row['way']:12s}  {row['lost_steps_a_failure']:20.1f}"
            f"  {row['lost']:6.2%}  {row['down']:6.2%}  {row['goodput']:7.2%}"
        )
    parent_us, joining_ms = measure_parent(), measure_joining()
    found = limits(costs, parent_us, joining_ms)
    print(f"the parent looks at a rank: {parent_us:.0f} us; takes its part: {joining_ms:.1f} ms")
    for name, value in found.items():
        print(f"{name.replace('_', ' ')}: {value:,.0f}")
    if options.json:
        document = {
            "costs": dataclasses.asdict(costs),
            "rows": rows,
            "parent_us": parent_us,
            "joining_ms": joining_ms,
            "limits": {name: value for name, value in found.items() if math.isfinite(value)},
        }
        options.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
