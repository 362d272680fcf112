"""Show the case library: crashes so far, what was tried, what helped."""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.entry_point import entry_point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir",
        metavar="DIR",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="the folder that holds the runs (default: runs)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json, print_table
    from supervisor.records import plain

    library = entry_point("cases", "supervisor.storage.cases", "CaseLibrary")(args.dir)
    cases = [plain(case) for case in library.cases()]
    if args.json:
        print_json(cases)
    elif not cases:
        print(f"{args.dir}: no case yet")
    else:
        names = list(cases[0])
        rows = [[case[name] for name in names] for case in cases]
        print_table([name.upper() for name in names], rows)
    return 0
