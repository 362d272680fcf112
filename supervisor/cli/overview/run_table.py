"""The table of `supervisor list`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from supervisor.cli.options.output import time_span
from supervisor.cli.overview.run_overview import RunOverview
from supervisor.records import plain

HEADINGS = ("RUN", "VERDICT", "STEP", "LOSS", "TREATED", "AGE", "SCRIPT")
SHORTENED = ("RUN", "SCRIPT")


def runs_data(runs: Iterable[RunOverview]) -> list[dict[str, Any]]:
    """Returns what `--json` prints."""
    return [{**plain(run), "verdict": run.verdict} for run in runs]


def run_rows(runs: Iterable[RunOverview]) -> list[tuple[object, ...]]:
    """Returns a row for each run."""
    return [
        (
            run.path,
            run.verdict,
            "-" if run.last_step is None else run.last_step,
            "-" if run.last_loss is None else f"{run.last_loss:.4g}",
            run.treatments or "-",
            "-" if run.age_s is None else time_span(run.age_s),
            run.script,
        )
        for run in runs
    ]
