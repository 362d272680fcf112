"""Try a policy on a recorded run: what would have been seen and done, without a GPU.

TRACE is a CSV with the columns step,loss,grad_norm,lr,loss_scale, or a run directory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.settings_options import add_settings_options, load_settings
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from supervisor.analysis.backtest.backtest import BacktestResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE.csv|RUN", type=option_values.path)
    add_settings_options(parser)
    parser.add_argument(
        "--plot", metavar="PATH.png", type=option_values.path, help="draw steps and risk"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: argparse.Namespace) -> int:
    from supervisor.analysis.backtest.backtest import backtest, summary
    from supervisor.cli.options.output import print_json
    from supervisor.table import print_table

    if args.plot is not None:
        option_values.check_output("--plot", args.plot, (".png", ".svg", ".pdf"))
    settings, policy = load_settings(args)
    result = backtest(args.trace, settings, policy)
    if args.plot is not None:
        _plot(result, args.plot, policy.alarm_threshold, args.trace.name)
    if args.json:
        print_json(result.to_dict())
        return 0
    for error in result.errors:
        print(f"warning: {error}")
    print(summary(result))
    if result.alarms:
        print()
        rows = [
            (alarm.step, f"{alarm.risk:.2f}", f"{alarm.calibrated:.0%}", alarm.reason)
            for alarm in result.alarms
        ]
        print_table(("ALARM AT", "RISK", "CRASH IN 20 STEPS", "REASON"), rows)
    if result.decisions:
        print()
        plan = [
            (decision.step, ", ".join(decision.actions) or "-", ", ".join(decision.undo) or "-")
            for decision in result.decisions
        ]
        print_table(("STEP", "WOULD DO", "WOULD TAKE BACK"), plan)
    return 0


def _plot(result: BacktestResult, path: Path, alarm_threshold: float, title: str) -> None:
    from supervisor.analysis.backtest.plot import plot_backtest

    try:
        plot_backtest(result, path, alarm_threshold=alarm_threshold, title=title)
    except (OSError, ValueError) as error:  # ValueError: a format that cannot be drawn
        raise UsageError(f"--plot {path}: {error}: give a .png that can be written") from error
