"""What `supervisor.announce` does to false alarms, and what it costs when it hides a fault.

    python -m benchmarks.announced_changes CORPUS [--splits train validation]

CORPUS is a folder made by `python -m benchmarks.corpus`. Every run that changes its data on purpose
is judged as it is, and as if its script had announced the change; then every run that crashes at
least 20 steps after something was done to it, as if its script had announced just that.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.corpus.training import step_of_change
from benchmarks.scorecard.alarms import Tally, tally
from benchmarks.scorecard.labelled_run import HORIZON, LabelledRun, load_runs
from supervisor.config import load_policy
from supervisor.pipeline import Pipeline
from supervisor.settings import RunSettings


def judge(run: LabelledRun, announced: tuple[int, ...] = ()) -> Tally:
    """The alarms of the pipeline of a live run whose script announces a change at these steps."""
    policy = load_policy()
    pipeline = Pipeline(RunSettings(), policy)
    records = run.trace.records(announced=announced)
    risk = np.array([pipeline.update(record).risk.probability for record in records])
    return tally(run, risk >= policy.alarm_threshold)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--splits", nargs="+", default=["train", "validation"])
    arguments = parser.parse_args()
    runs = [run for run in load_runs(arguments.corpus) if run.split in arguments.splits]
    compare("data changed on purpose", [(r, r.trace.intended) for r in runs if r.trace.intended])
    compare("faults that were announced", [(r, (fault_of(r),)) for r in runs if fault_of(r) >= 0])


def fault_of(run: LabelledRun) -> int:
    """The step at which something was done that ended in a crash; -1 if that was the start."""
    at = step_of_change(run.trace.recipe)
    is_later = run.outcome.crashed and run.trace.recipe.sick and run.outcome.onset >= at
    return at if is_later and run.outcome.peak - at >= HORIZON and not run.trace.intended else -1


def compare(title: str, runs: list[tuple[LabelledRun, tuple[int, ...]]]) -> None:
    print(f"{title}: {len(runs)} runs, {sum(run.outcome.crashed for run, _ in runs)} crash")
    for name in ("as they are", "announced"):
        tallies = [judge(run, steps if name == "announced" else ()) for run, steps in runs]
        found = sum(t.first >= 0 for t in tallies)
        late = sum(t.first >= 0 or t.late for t in tallies)
        print(
            f"    {name}: {sum(t.false for t in tallies)} false alarms; {found} crashes found "
            f"before the peak, {late} at most five steps later"
        )


if __name__ == "__main__":
    main()
