"""Go through the checklist before a long training.

Checks versions, memory, disk, and saving and restoring a state; with SCRIPT also a few steps of the
training itself. Exit code 0 if all is well, 1 if not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from supervisor.cli.options import option_values
from supervisor.cli.options.script_arguments import parse_with_script
from supervisor.cli.options.settings_options import add_trial_options, say, trial_script

EXIT_CODES = {"0": "every check passed", "1": "a check failed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "supervisor doctor [OPTIONS] [SCRIPT[:FUNCTION] [SCRIPT_ARGS...]]"
    option_values.add_steps(parser, 8, 20, "of each trial run")
    add_trial_options(parser)


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_script(parser, words, needs_script=False)


def execute(args: argparse.Namespace) -> int:
    from supervisor.analysis.doctor.doctor import doctor
    from supervisor.table import print_table

    script = None if args.script is None else trial_script("doctor", args)
    checks = doctor(script, steps=args.steps, keep=args.keep, say=say)
    if args.json:
        option_values.print_json(checks)
    else:
        rows = [("ok" if check.ok else "NOT OK", check.name, check.detail) for check in checks]
        print_table(("", "CHECK", "DETAIL"), rows)
    return 0 if all(check.ok for check in checks) else 1
