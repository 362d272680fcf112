"""Try a policy on a recorded run: what would have been seen and done, without a GPU.

TRACE is a CSV with the columns step,loss,grad_norm,lr,loss_scale, or a run directory.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.settings_options import add_settings_options, load_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE.csv|RUN", type=Path)
    add_settings_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.analysis.backtest import backtest
    from supervisor.cli.output import print_json, print_table

    settings, policy = load_settings(args)
    result = backtest(args.trace, settings, policy)
    if args.json:
        print_json(result.to_dict())
        return 0
    print(f"{result.steps} steps, {len(result.alarms)} alarms, {len(result.decisions)} decisions")
    if result.alarms:
        print()
        rows = [(alarm.step, f"{alarm.risk:.2f}", alarm.reason) for alarm in result.alarms]
        print_table(("ALARM AT", "RISK", "REASON"), rows)
    if result.decisions:
        print()
        rows = [
            (decision.step, ", ".join(decision.actions) or "-", ", ".join(decision.undo) or "-")
            for decision in result.decisions
        ]
        print_table(("STEP", "WOULD DO", "WOULD TAKE BACK"), rows)
    return 0
