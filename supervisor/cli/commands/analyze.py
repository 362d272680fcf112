"""Run captured batches again and show what made them anomalous.

Forward and backward are repeated from the matching checkpoint: original and recomputed loss,
gradients sorted by norm, the same batch under other random seeds. Details go to
RUN/anomalies/analysis.
"""

from __future__ import annotations

import argparse

from supervisor.cli.options import option_values
from supervisor.cli.options.option_values import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=option_values.path, help="a run directory")
    parser.add_argument("--step", metavar="N", type=option_values.whole(0), help="only this step")
    parser.add_argument("--visualize", action="store_true", help="write plots, too")
    parser.add_argument(
        "--budget-s",
        metavar="N",
        type=option_values.seconds(0.001, 30 * 86400),
        default=600.0,
        help="begin no replay after so many seconds (default 600)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    rundir = open_run(args.run)

    from supervisor.analysis.analyze.analyze import analyze
    from supervisor.cli.options.option_values import print_json
    from supervisor.cli.options.settings_options import say

    result = analyze(
        rundir,
        step=args.step,
        visualize=args.visualize,
        budget_s=args.budget_s,
        say=say,
    )
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0
