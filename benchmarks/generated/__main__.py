"""Random small programs, killed at random places: `exact` must be true.

    python -m benchmarks.generated [--programs 2000] [--seed 0] [--jobs 2] [--json FILE] [--shrink]

Each program is run by plain python, healthy under the supervisor, and killed; compared are what it
printed, its files, and all that its Python could reach in the end. With --json each result is
written at once, and a command that was broken off goes on behind it. The exit code is 1 if an
`exact` was false or a healthy run different.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from benchmarks.generated.program import Recipe, random_recipe, simpler
from benchmarks.generated.trial import Verdict, try_recipe
from benchmarks.generated.warm_client import ROOT, WarmClient

PORTION = 10
"""Programs that one process runs: a warm process grows with what it has run."""


def recipe_of(seed: int, number: int) -> Recipe:
    """Returns the program of a number; the same for ever."""
    return random_recipe(random.Random(f"{seed}.{number}"))


def run_portion(seed: int, numbers: range, folder: Path) -> Iterator[dict[str, Any]]:
    """Runs programs one after another; called in a process of its own."""
    client = WarmClient()
    try:
        for number in numbers:
            recipe = recipe_of(seed, number)
            verdict = try_recipe(recipe, client, folder)
            yield {"number": number, "kind": verdict.kind, **verdict.to_dict()}
    finally:
        client.close()


def shrink(seed: int, number: int, folder: Path) -> tuple[Recipe, Verdict]:
    """Returns the least program that goes wrong in the same way; it is left in `folder`."""
    client, recipe = WarmClient(), recipe_of(seed, number)
    try:
        kind = try_recipe(recipe, client, folder, healthy=False).kind
        goes_on = True
        while goes_on:
            goes_on = False
            for less in simpler(recipe):
                if try_recipe(less, client, folder, healthy=False).kind == kind:
                    recipe, goes_on = less, True
                    break
        return recipe, try_recipe(recipe, client, folder, healthy=False)
    finally:
        client.close()


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as temporary:
        top = options.keep or Path(temporary)
        os.environ["SUPERVISOR_CASES"] = str(top / "cases.sqlite")
        if options.portion is not None:
            numbers = range(options.portion, min(options.portion + PORTION, options.programs))
            for row in run_portion(options.seed, numbers, top / f"portion_{options.portion}"):
                print(json.dumps(row), flush=True)
            return 0
        if options.shrink is not None:
            recipe, verdict = shrink(options.seed, options.shrink, top / str(options.shrink))
            print(recipe, verdict.kind, verdict.killed, verdict.reason, sep="\n")
            return 0
        return _run_all(options)


def _run_all(options: argparse.Namespace) -> int:
    rows = _earlier(options.json)
    left = [
        first
        for first in range(0, options.programs, PORTION)
        if not rows.keys() >= set(range(first, min(first + PORTION, options.programs)))
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(_portion, first, options) for first in left]
        for done in as_completed(waiting):
            for row in done.result():
                rows[row["number"]] = row
                if row["kind"] == "false exact" or row["healthy"]:
                    print(row["number"], row["kind"], row["healthy"] or row["killed"], flush=True)
            if options.json:
                options.json.write_text(json.dumps([rows[n] for n in sorted(rows)], indent=1))
    return _tell([rows[number] for number in sorted(rows) if number < options.programs])


def _portion(first: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    line = [sys.executable, "-m", "benchmarks.generated", "--portion", str(first)]
    line += ["--seed", str(options.seed), "--programs", str(options.programs)]
    with Popen(line, cwd=ROOT, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        return [json.loads(text) for text in process.stdout if text.startswith("{")]


def _earlier(path: Path | None) -> dict[int, dict[str, Any]]:
    if path is None or not path.exists():
        return {}
    return {row["number"]: row for row in json.loads(path.read_text())}


def _tell(rows: list[dict[str, Any]]) -> int:
    counts = Counter(row["kind"] for row in rows)
    healthy = sum(bool(row["healthy"]) for row in rows)
    print(f"| what came of {len(rows)} programs | number |\n| --- | --- |")
    for kind, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        print(f"| {kind} | {count} |")
    print(f"| healthy run different | {healthy} |")
    return 1 if counts["false exact"] or healthy else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.generated", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the runs, kept afterwards")
    parser.add_argument("--shrink", type=int, metavar="NUMBER", help="make one as small as it goes")
    parser.add_argument("--portion", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
