"""Options shared by `verify`, `doctor` and `drill`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.ranks_options import (
    add_nproc_option,
    add_ranks_options,
    checked_nproc,
)
from supervisor.cli.options.settings_options import add_settings_options, load_settings

if TYPE_CHECKING:
    from supervisor.analysis.trial_run import TrialScript


def add_trial_options(parser: argparse.ArgumentParser, *, nodes: bool = False) -> None:
    """Adds --policy, --config, --set, --nproc-per-node, --keep and --json; with `nodes` also the
    options of several nodes."""
    add_settings_options(parser)
    if nodes:
        add_ranks_options(parser)
    else:
        add_nproc_option(parser, "N", "each run with so many ranks: a number, auto, gpu or cpu")
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=option_values.path,
        help="leave the run directories in this new folder",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def trial_script(command: str, args: argparse.Namespace) -> TrialScript:
    """Returns the script that a command is to try.

    Raises:
        ConfigError, UsageError: the options for its runs are wrong.
    """
    from supervisor.analysis.trial_run import TrialScript

    load_settings(args)
    script = args.script
    words = ["-m", script.target] if script.kind == "module" else [script.target]
    if script.function:
        words = [f"{script.target}:{script.function}"]
    options = [f"--policy={args.policy}", f"--config={args.config}"]
    options += [f"--set={pair}" for pair in args.set]
    if args.nproc_per_node is not None:
        options.append(f"--nproc-per-node={checked_nproc(command, args.nproc_per_node)}")
    return TrialScript(words=(*words, *args.arguments), options=tuple(options))


def say(line: str) -> None:
    """Prints progress to stderr; stdout is for the result."""
    print(f"supervisor: {line}", file=sys.stderr, flush=True)
