"""Makes the corpus: several hundred short real trainings, in about 15 minutes on two cores.

    python -m benchmarks.corpus FOLDER [--processes 2] [--only PART_OF_A_NAME] [--list]

Each run becomes FOLDER/<name>.npz, which is kept when it is there already, so that an interrupted
making goes on. FOLDER/MANIFEST.csv lists the runs with their labels, which come from how each run
ended (`outcome.judge`), not from what was done to it.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

from benchmarks.corpus.catalogue import catalogue
from benchmarks.corpus.making import make
from benchmarks.corpus.recipe import Recipe


def write_manifest(folder: Path, recipes: list[Recipe]) -> None:
    from benchmarks.corpus.outcome import judge
    from benchmarks.corpus.trace import load_trace

    counts: Counter[tuple[str, str]] = Counter()
    steps = 0
    with open(folder / "MANIFEST.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        fields = ("label", "onset", "crash", "peak")
        writer.writerow(["name", "split", "steps", "meant_sick", *fields, "excursions"])
        for recipe in recipes:
            trace = load_trace(folder / f"{recipe.name}.npz")
            outcome = judge(trace)
            steps += len(trace)
            counts[(recipe.split, outcome.label)] += 1
            writer.writerow(
                [
                    *(recipe.name, recipe.split, len(trace), int(recipe.sick)),
                    *(getattr(outcome, field) for field in fields),
                    " ".join(f"{first}-{last}" for first, last in outcome.excursions),
                ]
            )
    print(f"{len(recipes)} runs, {steps} steps")
    for (split, label), count in sorted(counts.items()):
        print(f"  {split:12s} {label:10s} {count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    arguments = parser.parse_args()
    recipes = [recipe for recipe in catalogue() if arguments.only in recipe.name]
    if arguments.list:
        print("\n".join(f"{recipe.split:12s} {recipe.name}" for recipe in recipes))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.monotonic()
    jobs = [(recipe, arguments.folder) for recipe in recipes]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for count, name in enumerate(pool.imap_unordered(make, jobs, chunksize=4), 1):
            if count % 25 == 0 or count == len(jobs):
                print(f"{count}/{len(jobs)} {time.monotonic() - began:.0f} s {name}", flush=True)
    write_manifest(arguments.folder, recipes)


if __name__ == "__main__":
    main()
