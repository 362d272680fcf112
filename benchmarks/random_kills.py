"""Kills random runs at random places and compares what they end with, to the bit.

    python -m benchmarks.random_kills [--kills 200] [--seed 0] [--jobs 2] [--json FILE]

Each round takes a random loop style of tests/scenarios/loop_styles.py, a random step and a random
moment within it (forward, evaluation, backward, update, after), kills the process there with
SIGKILL under `supervisor run`, and compares the result with that of plain python.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.scenarios.loop_styles import LOOP_STYLES, script
from tests.scenarios.runs import Ended, differences, plain, supervised

MOMENTS = ("forward", "backward", "update", "after", "evaluation")


@dataclass(frozen=True)
class Round:
    """One kill and what came of it; `verdict` is lost, exact, or not struck."""

    style: str
    step: int
    moment: str
    verdict: str
    exactness: str


@cache
def expected(style: str, folder: str) -> Ended:
    return plain(Path(folder) / f"plain {style}", script(style))


def strike(number: int, seed: int, folder: str) -> Round:
    """Runs one round; the same number and seed give the same kill."""
    chance = random.Random(seed * 1_000_003 + number)
    style = chance.choice(list(LOOP_STYLES))
    step, moment = chance.randrange(0, 36), chance.choice(MOMENTS)
    every = chance.choice((1, 3, 8))
    ended = supervised(
        Path(folder) / f"killed {number}",
        script(style),
        settings=(f"checkpoint.every_steps={every}",),
        faults=f"[{{kind: sigkill, step: {step}, moment: {moment}}}]",
    )
    said = [str(event["exactness"]) for event in ended.events("resumed")]
    if ended.returncode != 0 or differences(expected(style, folder).result(), ended.result()):
        verdict = "lost"
    else:
        verdict = "exact" if ended.events("restart") else "not struck"
    return Round(style, step, moment, verdict, " ".join(said) or "from the start")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds: list[Round] = []
    number = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        while sum(r.verdict != "not struck" for r in rounds) < options.kills:
            numbers = range(number, number + 10)
            number += 10
            for done in pool.map(lambda n: strike(n, options.seed, folder), numbers):
                rounds.append(done)
                if done.verdict == "lost":
                    print(f"LOST: {done}", flush=True)
            struck_now = sum(r.verdict != "not struck" for r in rounds)
            print(f"{struck_now} of {options.kills} struck", flush=True)
    struck = [r for r in rounds if r.verdict != "not struck"]
    for verdict, count in Counter(r.verdict for r in struck).items():
        print(f"{verdict}: {count} of {len(struck)}")
    print("resumed:", dict(Counter(r.exactness for r in struck)))
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rounds], indent=2))
    return any(r.verdict == "lost" for r in struck)


if __name__ == "__main__":
    raise SystemExit(main())
