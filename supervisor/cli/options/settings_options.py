"""The options --policy, --config and --set; those of `verify`, `doctor` and `drill`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.ranks_options import add_nproc_option, checked_nproc

if TYPE_CHECKING:
    from supervisor.analysis.trial_run import TrialScript
    from supervisor.settings import PolicySettings, RunSettings


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """Adds the three options."""
    parser.add_argument(
        "--policy",
        metavar="NAME|FILE",
        default="default",
        help="what to do about trouble (see `supervisor policies`)",
    )
    parser.add_argument(
        "--config",
        metavar="NAME|FILE",
        default="default",
        help="what to watch and how to run (see `supervisor configs`)",
    )
    add_set_option(parser)


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Adds --set alone."""
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change one key of the config, or with `policy.` before it of the policy; repeatable",
    )


def load_settings(arguments: argparse.Namespace) -> tuple[RunSettings, PolicySettings]:
    """Returns the config and policy that the options name; checks detectors, too.

    Raises:
        ConfigError: as `supervisor.config.load_config`.
    """
    from supervisor.config import load_config, load_policy, split_overrides

    for_config, for_policy = split_overrides(arguments.set)
    settings = load_config(arguments.config, for_config)
    policy = load_policy(arguments.policy, for_policy)
    check_detectors(settings, arguments.config)
    return settings, policy


def check_detectors(settings: RunSettings, where: str) -> None:
    """Raises UsageError for detectors, handlers, faults or signals that there cannot be."""
    from supervisor.detectors.registry import build_detectors, load_alert_handlers
    from supervisor.errors import ConfigError
    from supervisor.fault_injection.fault import Fault
    from supervisor.parent.process.signals import signal_numbers

    signal_numbers(settings.preemption.signals)
    try:
        for entry in settings.faults:
            Fault.from_config(entry)
        build_detectors(settings.detectors)
        load_alert_handlers(settings.alert_handlers)
    except ConfigError as error:
        raise ConfigError(f"config {where}: {error}") from error


def add_trial_options(parser: argparse.ArgumentParser) -> None:
    """Adds --policy, --config, --set, --nproc-per-node, --keep and --json."""
    add_settings_options(parser)
    add_nproc_option(parser, "N", "each run with so many ranks: a number, auto, gpu or cpu")
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=option_values.path,
        help="leave the run directories in this new folder",
    )
    option_values.add_json(parser)


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
