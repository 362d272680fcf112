"""List the runs in a folder, sorted and filtered.

supervisor runs --sort loss --verdict completed
supervisor runs --name 'llm-*'
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.options import option_values
from supervisor.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from supervisor.cli.overview.run_selection import ORDERS, VERDICTS, verdicts

    parser.add_argument(
        "dir",
        metavar="DIR",
        type=option_values.path,
        nargs="?",
        default=Path("runs"),
        help="the folder that holds the runs (default: runs)",
    )
    parser.add_argument(
        "--sort",
        choices=tuple(ORDERS),
        default="newest",
        help="smallest loss first; newest, or most steps, treatments, attempts first",
    )
    parser.add_argument(
        "--verdict",
        metavar="WORD,...",
        type=verdicts,
        default=(),
        help=f"only these: {', '.join(VERDICTS)}",
    )
    parser.add_argument(
        "--name", metavar="PATTERN", default="", help="only runs or scripts of such a name"
    )
    option_values.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.overview.run_overview import (
        HEADINGS,
        SHORTENED,
        find_runs,
        run_rows,
        runs_data,
    )
    from supervisor.cli.overview.run_selection import ORDERS, Selection
    from supervisor.table import print_table

    if not args.dir.is_dir() and args.dir != Path("runs"):
        raise UsageError(f"{args.dir}: no such folder: give the one that holds your runs")
    found = find_runs(args.dir)
    wanted = Selection(verdicts=args.verdict, name=args.name)
    runs = sorted(filter(wanted.holds, found), key=ORDERS[args.sort])
    if args.json:
        option_values.print_json(runs_data(runs))
    elif not found:
        print(f"{args.dir}: no run yet: start one with `supervisor run train.py`")
    elif not runs:
        print(f"{args.dir}: none of {len(found)} runs is such a one")
    else:
        print_table(HEADINGS, run_rows(runs), shortened=SHORTENED)
    return 0
