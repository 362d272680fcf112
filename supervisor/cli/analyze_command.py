"""Run captured batches again and show what made them anomalous.

Forward and backward are repeated from the matching checkpoint: original and recomputed loss,
gradients sorted by norm, the same batch under other random seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.entry_point import entry_point
from supervisor.cli.run_directory import open_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--step", metavar="N", type=int, help="only the batch of this step")
    parser.add_argument("--visualize", action="store_true", help="write plots beside the batches")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json

    rundir = open_run(args.run)
    analyze = entry_point("analyze", "supervisor.analysis.analyze", "analyze")
    result = analyze(rundir, step=args.step, visualize=args.visualize)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0
