"""The options --policy, --config and --set, and loading what they name."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from supervisor.detectors.alert_handlers import load_alert_handlers
    from supervisor.detectors.registry import GONE, build_detectors
    from supervisor.errors import ConfigError
    from supervisor.fault_injection.fault import Fault
    from supervisor.parent.process.signals import signal_numbers

    signal_numbers(settings.preemption.signals)
    try:
        for entry in settings.faults:
            Fault.from_config(entry)
        build_detectors(settings.detectors)
        for name in sorted(settings.detectors.keys() & {*GONE}):
            told = f"config {where}: detectors.{name}: this version has no such detector: left out"
            print(f"supervisor: {told}", file=sys.stderr)
        load_alert_handlers(settings.alert_handlers)
    except ConfigError as error:
        raise ConfigError(f"config {where}: {error}") from error
