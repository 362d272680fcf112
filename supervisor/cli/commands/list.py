"""List the runs in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.options import option_values
from supervisor.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir",
        metavar="DIR",
        type=option_values.path,
        nargs="?",
        default=Path("runs"),
        help="the folder that holds the runs (default: runs)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.options.output import print_json
    from supervisor.cli.overview.run_overview import find_runs
    from supervisor.cli.overview.run_table import HEADINGS, SHORTENED, run_rows
    from supervisor.records import plain
    from supervisor.table import print_table

    if not args.dir.is_dir() and args.dir != Path("runs"):
        raise UsageError(f"{args.dir}: no such folder: give the one that holds your runs")
    runs = find_runs(args.dir)
    if args.json:
        print_json([{**plain(run), "verdict": run.verdict} for run in runs])
    elif not runs:
        print(f"{args.dir}: no run yet: start one with `supervisor run train.py`")
    else:
        print_table(HEADINGS, run_rows(runs), shortened=SHORTENED)
    return 0
