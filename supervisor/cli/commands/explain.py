"""Find the cause of a crash by controlled replay.

The trouble is replayed from the last stable checkpoint, first unchanged, then with one change at a
time; what cures it points to the cause. The run itself is not changed.
"""

from __future__ import annotations

import argparse

from supervisor.cli.options import option_values
from supervisor.cli.options.option_values import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=option_values.path, help="a run directory")
    parser.add_argument(
        "--budget-s",
        metavar="N",
        type=option_values.seconds(0.001, 30 * 86400),
        default=900.0,
        help="begin no replay after so many seconds (default 900)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        dest="make_all",
        help="make every replay, even those that can no longer change the answer",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    rundir = open_run(args.run)

    from supervisor.analysis.explain.explain import explain
    from supervisor.cli.options.option_values import print_json
    from supervisor.cli.options.settings_options import say

    result = explain(rundir, budget_s=args.budget_s, make_all=args.make_all, say=say)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0
