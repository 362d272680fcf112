"""Delete the checkpoints of ended runs, and files that were set aside, after showing which.

Without --yes nothing is deleted. A run that is running is left alone, and one that can be resumed
keeps what it would be resumed from and all files of the script that were set aside; reports,
journals and recorded steps stay.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from supervisor.cli.overview.run_pruning import Pruning


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dirs",
        metavar="DIR|RUN",
        type=option_values.path,
        nargs="*",
        help="a folder with runs, or a run directory (default: runs)",
    )
    parser.add_argument("--yes", action="store_true", help="delete; without it, only show")
    parser.add_argument(
        "--older-than",
        metavar="DAYS",
        type=option_values.days,
        default=0.0,
        help="only of runs that wrote nothing for so many days (default 0: every ended run)",
    )
    parser.add_argument(
        "--also-newest",
        action="store_true",
        help="of runs that can be resumed, also what they would be resumed from",
    )
    option_values.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.overview.run_pruning import Wish, carry_out, plan

    wish = Wish(older_than_s=args.older_than * 86400, also_newest=args.also_newest)
    runs = [run for folder in args.dirs or [Path("runs")] for run in _runs(folder)]
    done = [carry_out(run, wish) if args.yes else plan(run, wish) for run in dict.fromkeys(runs)]
    if args.json:
        option_values.print_json(done)
    else:
        _show(done, is_done=args.yes)
    return 0


def _runs(folder: Path) -> list[Path]:
    if (folder / "run.json").is_file():
        return [folder]
    if not folder.is_dir() and folder != Path("runs"):
        raise UsageError(f"{folder}: no such folder: give a run, or a folder that holds runs")
    return sorted(path.parent for path in folder.glob("*/run.json"))


def _show(done: Sequence[Pruning], *, is_done: bool) -> None:
    from supervisor.cli.options.option_values import byte_size
    from supervisor.table import print_table

    if not done:
        print("no run there")
        return
    rows = [
        (
            run.path,
            run.state,
            len(run.steps),
            byte_size(run.bytes),
            run.files,
            byte_size(run.file_bytes),
            len(run.kept),
            run.reason or "-",
        )
        for run in done
    ]
    went = "DELETED" if is_done else "GO"
    print_table(("RUN", "STATE", went, "SIZE", "FILES", "SIZE", "STAY", "WHY"), rows)
    named = _named(sum(len(run.steps) for run in done), sum(run.bytes for run in done))
    files, file_bytes = sum(run.files for run in done), sum(run.file_bytes for run in done)
    if files:
        size = f"{byte_size(file_bytes)} ({file_bytes:,} bytes)"
        named += f", and {files} file{'s' * (files != 1)} of scripts beside them, {size}"
    if is_done:
        print(f"\ndeleted: {named}")
    elif any(run.steps or run.files for run in done):
        print(f"\nwould delete: {named}; nothing is deleted yet: add --yes")
    else:
        print("\nnothing to delete")


def _named(count: int, size: int) -> str:
    from supervisor.cli.options.option_values import byte_size

    return f"{count} checkpoint{'s' * (count != 1)}, {byte_size(size)} ({size:,} bytes)"
