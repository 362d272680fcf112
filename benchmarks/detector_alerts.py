"""What each detector says of the corpus with its default settings: how often it is wrong.

    python -m benchmarks.detector_alerts CORPUS [--splits train validation]

CORPUS is a folder made by `python -m benchmarks.corpus`. An alert is false at a healthy step; it
tells of a crash from 20 steps before its first sign to before its peak. Detectors of what a trace
does not hold (looks inside the model, step times) say nothing here; `benchmarks/live_signals.py` is
for those.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from benchmarks.scorecard.labelled_run import LabelledRun, load_runs
from supervisor.detectors.registry import BUILTIN, build_detectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--splits", nargs="+", default=["train", "validation"])
    arguments = parser.parse_args()
    runs = [run for run in load_runs(arguments.corpus) if run.split in arguments.splits]
    healthy = sum(int(run.healthy.sum()) for run in runs)
    crashes = sum(run.outcome.crashed for run in runs)
    false: Counter[str] = Counter()
    noisiest: Counter[str] = Counter()
    told: Counter[str] = Counter()
    for run in runs:
        wrong, right = alerts_of(run)
        false += wrong
        noisiest |= wrong
        told.update(right)
    print(f"{len(runs)} runs, {crashes} crash, {healthy} healthy steps")
    print("| detector | false per 10,000 healthy steps | most in one run | crashes told of |")
    print("| --- | --- | --- | --- |")
    for name in BUILTIN:
        if false[name] or told[name]:
            rate = 1e4 * false[name] / healthy
            print(f"| `{name}` | {rate:.1f} | {noisiest[name]} | {told[name]} of {crashes} |")


def alerts_of(run: LabelledRun) -> tuple[Counter[str], set[str]]:
    """(false alerts by detector, detectors that told of the crash)."""
    detectors = build_detectors({})
    first, peak = run.window if run.outcome.crashed else (0, 0)
    wrong: Counter[str] = Counter()
    right: set[str] = set()
    for record in run.trace.records(live=("activation_max",)):
        for detector in detectors:
            if detector.update(record) is None:
                continue
            if run.healthy[record.step]:
                wrong[detector.name] += 1
            if first <= record.step < peak:
                right.add(detector.name)
    return wrong, right


if __name__ == "__main__":
    main()
