"""Try a policy on a recorded run: what would have been seen and done, without a GPU.

LOG is a CSV, JSON, JSON lines, TensorBoard's or W&B's file, or a trainer's console output, also as
.gz or .xz (docs/backtest.md lists them), or a run directory.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.settings_options import add_settings_options, load_settings
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from supervisor.analysis.backtest.backtest import BacktestResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG|RUN", type=option_values.path)
    parser.add_argument(
        "--map",
        metavar="NAME=COLUMN,...",
        type=_mapping,
        default={},
        help="which column is what: loss=train/loss,step=global_step,grad_norm=...,reward=...",
    )
    add_settings_options(parser)
    option_values.add_plot(parser, "draw steps and risk (png, svg or pdf)")
    option_values.add_json(parser)


def _mapping(text: str) -> dict[str, str]:
    """``loss=train/loss,step=a,b`` → which column is what; columns may have commas in them."""
    found: dict[str, str] = {}
    for pair in re.split(r",(?=\w+=)", text):
        name, equals, column = pair.partition("=")
        if not (re.fullmatch(r"\w+", name) and equals and column):
            raise argparse.ArgumentTypeError(f"{pair!r}: give NAME=COLUMN, as loss=train/loss")
        if name in found:
            raise argparse.ArgumentTypeError(f"{name} twice: give each name once")
        found[name] = column
    return found


def execute(args: argparse.Namespace) -> int:
    from supervisor.analysis.backtest.backtest import backtest, summary
    from supervisor.table import print_table, printable

    settings, policy = load_settings(args)
    result = backtest(args.log, settings, policy, args.map)
    if args.plot is not None:
        _plot(result, args.plot, policy.alarm_threshold, args.log.name)
    for remark in result.remarks:
        print(f"{args.log}: {printable(remark)}", file=sys.stderr)
    if args.json:
        option_values.print_json(result.to_dict())
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
    from supervisor.analysis.backtest.backtest import plot_backtest

    try:
        plot_backtest(result, path, alarm_threshold=alarm_threshold, title=title)
    except (OSError, ValueError) as error:  # ValueError: a format that cannot be drawn
        raise UsageError(f"--plot {path}: {error}: give a .png that can be written") from error
