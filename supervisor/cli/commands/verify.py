"""Prove that a script resumes exactly, or name the first thing that differs.

Runs it three times for a few steps: twice undisturbed, once killed and resumed, and compares every
tensor, generator and schedule at every step. Exit code 0 if it is exact, 1 if not.
"""

from __future__ import annotations

import argparse

from supervisor.cli.options import option_values
from supervisor.cli.options.script_arguments import parse_with_script
from supervisor.cli.options.settings_options import add_trial_options, say, trial_script

EXIT_CODES = {"0": "resumes exactly", "1": "does not resume exactly, or the script fails"}
parse = parse_with_script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "supervisor verify [OPTIONS] SCRIPT[:FUNCTION] [SCRIPT_ARGS...]"
    option_values.add_steps(parser, 1, 30, "stop after so many steps")
    parser.add_argument(
        "--break-at",
        metavar="K",
        type=option_values.whole(1),
        help="kill after so many steps (default: half way)",
    )
    add_trial_options(parser)


def execute(args: argparse.Namespace) -> int:
    from supervisor.analysis.verify import verify

    script = trial_script("verify", args)
    result = verify(script, steps=args.steps, break_at=args.break_at, keep=args.keep, say=say)
    option_values.print_result(result, as_json=args.json)
    return 0 if result.exact else 1
