"""Find the cause of a crash by controlled replay.

The crash is repeated from the last stable checkpoint as it was, then with one thing changed at a
time; what cures it is the diagnosis.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.entry_point import entry_point
from supervisor.cli.run_directory import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json

    rundir = open_run(args.run)
    result = entry_point("explain", "supervisor.analysis.explain", "explain")(rundir)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0
