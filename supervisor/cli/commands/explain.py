"""Find the cause of a crash by controlled replay.

The trouble is replayed from the last stable checkpoint, first unchanged, then with one change at a
time; what cures it points to the cause. The run itself is not changed.
"""

from __future__ import annotations

import argparse

from supervisor.cli.options import option_values
from supervisor.cli.options.option_values import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option_values.add_run(parser)
    option_values.add_budget(parser, 900.0)
    parser.add_argument(
        "--all",
        action="store_true",
        dest="make_all",
        help="make every replay, even those that can no longer change the answer",
    )
    option_values.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    rundir = open_run(args.run)

    from supervisor.analysis.explain.explain import explain
    from supervisor.cli.options.settings_options import say

    result = explain(rundir, budget_s=args.budget_s, make_all=args.make_all, say=say)
    option_values.print_result(result, as_json=args.json)
    return 0
