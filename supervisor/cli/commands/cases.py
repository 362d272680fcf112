"""Show the case library: crashes so far, what was tried, what helped.

The library belongs to the user, not to a run ($SUPERVISOR_CASES names another file); with DIR only
the cases of runs in that folder are shown.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from supervisor.cli.options import option_values
from supervisor.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", metavar="DIR", type=option_values.path, nargs="?", help="a folder with runs"
    )
    option_values.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    from supervisor.storage.cases.cases import CaseLibrary
    from supervisor.table import print_table

    if args.dir is not None and args.dir.is_file():
        raise UsageError(f"{args.dir}: is a file: give a folder that holds runs of yours")
    library = CaseLibrary()
    cases = library.all()
    if args.dir is not None:
        folder = args.dir.resolve()
        cases = [case for case in cases if Path(case.run).resolve().is_relative_to(folder)]
        if not cases and not folder.is_dir():  # runs may be gone, their cases are not
            raise UsageError(f"{args.dir}: no such folder: give one that holds runs of yours")
    if args.json:
        option_values.print_json(cases)
    elif not cases:
        print(f"{library.path}: no case yet")
    else:
        rows = [
            (
                time.strftime("%Y-%m-%d %H:%M", time.localtime(case.time)),
                case.cause,
                case.treatment or "-",
                case.outcome,
                case.script,
                case.run,
            )
            for case in cases
        ]
        print_table(("TIME", "CAUSE", "TREATMENT", "OUTCOME", "SCRIPT", "RUN"), rows)
    return 0
