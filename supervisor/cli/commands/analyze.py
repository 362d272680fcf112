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
    option_values.add_run(parser)
    parser.add_argument("--step", metavar="N", type=option_values.whole(0), help="only this step")
    parser.add_argument("--visualize", action="store_true", help="write plots, too")
    option_values.add_budget(parser, 600.0)
    option_values.add_json(parser)


def execute(args: argparse.Namespace) -> int:
    rundir = open_run(args.run)

    from supervisor.analysis.analyze.analyze import analyze
    from supervisor.cli.options.settings_options import say

    result = analyze(
        rundir,
        step=args.step,
        visualize=args.visualize,
        budget_s=args.budget_s,
        say=say,
    )
    option_values.print_result(result, as_json=args.json)
    return 0
