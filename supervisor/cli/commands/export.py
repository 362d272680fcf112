"""Write the steps of a run as CSV or for TensorBoard.

A CSV has the columns that `supervisor backtest` reads.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.options import option_values
from supervisor.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=option_values.path, help="a run directory")
    parser.add_argument("--to", choices=("csv", "tensorboard"), required=True)
    parser.add_argument(
        "--rank", type=option_values.whole(0), default=0, help="whose steps (default 0)"
    )
    parser.add_argument(
        "--output",
        metavar="PATH",
        type=option_values.path,
        help="file or folder (default: RUN/steps.csv, RUN/tensorboard)",
    )


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.commands.step_export import write_csv, write_tensorboard
    from supervisor.cli.options.run_directory import open_run

    rundir = open_run(args.run)
    csv = args.to == "csv"
    if args.output is not None:
        _check_output(args.output, csv=csv)
    target = args.output or rundir.root / ("steps.csv" if csv else "tensorboard")
    try:
        rows = (write_csv if csv else write_tensorboard)(rundir, args.rank, target)
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror or error}: give another --output") from error
    print(f"{target}: {rows} steps")
    return 0


def _check_output(target: Path, *, csv: bool) -> None:
    """Checks the target: a folder for TensorBoard, which may be new; a file for CSV."""
    if csv:
        option_values.check_output("--output", target, (".csv",))
    elif not target.is_dir():
        option_values.check_output("--output", target)
        if target.exists():
            raise UsageError(f"{target}: File exists: give a folder or another --output")
