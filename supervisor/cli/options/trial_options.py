"""Options shared by `verify`, `doctor` and `drill`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.settings_options import add_settings_options, load_settings

if TYPE_CHECKING:
    from supervisor.analysis.trial_run import TrialScript


def add_trial_options(parser: argparse.ArgumentParser) -> None:
    """Adds --policy, --config, --set, --keep and --json."""
    add_settings_options(parser)
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=option_values.path,
        help="leave the run directories in this new folder",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def trial_script(args: argparse.Namespace) -> TrialScript:
    """Returns the script to try.

    Raises:
        ConfigError: the options for its runs are wrong.
    """
    from supervisor.analysis.trial_run import TrialScript

    load_settings(args)
    script = args.script
    words = ["-m", script.target] if script.kind == "module" else [script.target]
    if script.function:
        words = [f"{script.target}:{script.function}"]
    options = [f"--policy={args.policy}", f"--config={args.config}"]
    options += [f"--set={pair}" for pair in args.set]
    return TrialScript(words=(*words, *args.arguments), options=tuple(options))


def say(line: str) -> None:
    """Prints progress to stderr; stdout is for the result."""
    print(f"supervisor: {line}", file=sys.stderr, flush=True)
