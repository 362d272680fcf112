"""How much of a day is useful on machines that are taken away: simulated, with our own intervals.

    python -m benchmarks.preemption [--days 8] [--json FILE]

No training is started: a virtual clock drives `SaveInterval` itself, which is told of the failures
before as `failures_seen` tells them. Attempts last as an exponential distribution draws them; each
fails without a word (SIGKILL, a lost machine), so that what was trained since the last save on disk
is trained again. Saving is compared with the best interval of all that stay the same: it knows the
rate of failures, and the cost of a save, from the first second on. Restarts cost both the same and
are left out. The goal is a ratio of at least 0.95; the first attempts, in which nothing is known
yet, are part of each day.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import deque
from pathlib import Path
from typing import Any

from supervisor.parent.restarts.starting_point import NEWEST
from supervisor.settings import CheckpointSettings
from supervisor.worker.checkpoints.save_interval import SaveInterval

DAY_S = 86_400.0
BETWEEN_S = (60.0, 300.0, 1800.0, 7200.0)
"""Mean time between failures."""
COSTS_S = (0.01, 0.1, 1.0, 5.0)
"""For which a save holds the training up."""
STEPS_S = (0.01, 0.5, 5.0)
WRITING = 2.0
"""A save is on disk after so many times its stall; assumed. Failures in between lose it."""
GOAL = 0.95


class _Fixed:
    """An interval that stays the same, with what is used of `SaveInterval`."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self.next_at = every_s

    def begun(self, step: int, now: float, stalled_s: float, usual_step_s: float) -> None:
        self.next_at = now + self._every_s

    def written(self, step: int, now: float, took_s: float) -> None:
        """Nothing is learned."""


def train(
    interval: SaveInterval | _Fixed, until_s: float, cost_s: float, step_s: float
) -> tuple[int, int]:
    """Returns the steps of one attempt that are on disk when it fails, and its saves.

    Args:
        interval: asked at each boundary.
        until_s: when it fails; the attempt begins at 0.
        cost_s: of a save, for the training.
        step_s: of a step.
    """
    now, done, saved, saves = 0.0, 0, 0, 0
    while True:
        steps = max(1, math.ceil((interval.next_at - now) / step_s - 1e-9))
        now, done = now + steps * step_s, done + steps
        if now + cost_s > until_s:
            return saved, saves
        now, saves = now + cost_s, saves + 1
        interval.begun(done, now, cost_s, step_s)
        writing = max(1, math.ceil(WRITING * cost_s / step_s))
        if now + writing * step_s > until_s:
            return saved, saves
        saved, now, done = done, now + writing * step_s, done + writing
        interval.written(done, now, WRITING * cost_s)


def learned(lengths: list[float], cost_s: float, step_s: float) -> float:
    """Returns the share of the time that is useful with `SaveInterval`."""
    settings, seen, steps = CheckpointSettings(), deque[float](maxlen=NEWEST), 0
    for length in lengths:
        interval = SaveInterval(settings, 0.0, failures=len(seen), trained_s=sum(seen))
        steps += train(interval, length, cost_s, step_s)[0]
        seen.append(length)
    return steps * step_s / sum(lengths)


def fixed(lengths: list[float], every_s: float, cost_s: float, step_s: float) -> float:
    steps = sum(train(_Fixed(every_s), length, cost_s, step_s)[0] for length in lengths)
    return steps * step_s / sum(lengths)


def simulate(between_s: float, cost_s: float, step_s: float, *, days: int) -> dict[str, Any]:
    """Returns the useful shares of a day, the mean of `days` of them."""
    ours = best = 0.0
    guess = math.sqrt(2.0 * cost_s * between_s)
    tried = [max(step_s, guess * 1.25**power) for power in range(-6, 7)]
    drawn = [_lengths(between_s, seed) for seed in range(days)]
    ours = sum(learned(lengths, cost_s, step_s) for lengths in drawn) / days
    shares = {
        every_s: sum(fixed(lengths, every_s, cost_s, step_s) for lengths in drawn) / days
        for every_s in dict.fromkeys(tried)
    }
    every_s, best = max(shares.items(), key=lambda item: item[1])
    return {
        "between_s": between_s,
        "cost_s": cost_s,
        "step_s": step_s,
        "useful": ours,
        "optimum": best,
        "optimum_every_s": every_s,
        "ratio": ours / best if best else math.nan,
    }


def _lengths(between_s: float, seed: int) -> list[float]:
    """Returns how long the attempts of a day last."""
    draw, lengths = random.Random(seed), []
    while sum(lengths) < DAY_S:
        lengths.append(min(draw.expovariate(1.0 / between_s), DAY_S - sum(lengths)))
    return lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=8, help="drawn for each row")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print("failure every  save costs  step    useful  optimum  (every)  ratio")
    for between_s in BETWEEN_S:
        for cost_s in COSTS_S:
            for step_s in STEPS_S:
                row = simulate(between_s, cost_s, step_s, days=args.days)
                rows.append(row)
                print(
                    f"{between_s:11.0f} s  {cost_s:8.2f} s  {step_s:4.2f} s {row['useful']:7.1%}"
                    f" {row['optimum']:8.1%} {row['optimum_every_s']:7.1f} s {row['ratio']:6.3f}"
                    f"{'' if row['ratio'] >= GOAL else '  below the goal'}"
                )
    below = sum(row["ratio"] < GOAL for row in rows)
    print(f"{len(rows) - below} of {len(rows)} within 5 % of the optimum")
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
