"""Inject faults into your training and show what it survives, at what cost.

Each fault gets a short run of its own, after an undisturbed one. Exit code 0 if every fault was
survived, 1 if not.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.script_arguments import parse_with_script
from supervisor.cli.options.settings_options import add_trial_options, say, trial_script

if TYPE_CHECKING:
    from supervisor.analysis.drill import DrillResult

_HEADINGS = ("FAULT", "SURVIVED", "FINAL LOSS", "REFERENCE", "STEPS LOST", "SECONDS LOST", "HOW")


EXIT_CODES = {"0": "every promised fault was survived", "1": "a fault was not survived"}
parse = parse_with_script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from supervisor.analysis.drill import MENU

    parser.usage = "supervisor drill [OPTIONS] SCRIPT[:FUNCTION] [SCRIPT_ARGS...]"
    parser.add_argument(
        "--faults",
        metavar="A,B,...",
        type=option_values.names,
        default=(),
        help=f"only these (default: all of {', '.join(MENU)})",
    )
    option_values.add_steps(parser, 1, 100, "of every run")
    add_trial_options(parser)


def execute(args: argparse.Namespace) -> int:
    from supervisor.analysis.drill import drill
    from supervisor.analysis.outcome import RULE

    script = trial_script("drill", args)
    result = drill(script, faults=list(args.faults), steps=args.steps, keep=args.keep, say=say)
    if args.json:
        option_values.print_json(result.to_dict())
    else:
        _show(result)
        print(RULE)
    return 0 if result.all_survived else 1


def _show(result: DrillResult) -> None:
    from supervisor.table import print_table

    rows = [
        (
            outcome.name,
            "yes" if outcome.survived else "NO",
            f"{outcome.final_loss:.6g}",
            f"{outcome.reference_loss:.6g}",
            str(outcome.steps_lost),
            f"{outcome.seconds_lost:.1f}",
            outcome.detail,
        )
        for outcome in result.faults
    ]
    print_table(_HEADINGS, rows, styles=["green" if row[1] == "yes" else "red" for row in rows])
