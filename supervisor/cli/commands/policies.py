"""Show the shipped policies: what is done about trouble.

A policy of your own is a YAML file that builds on one of these: see docs/configuration.md.
"""

from __future__ import annotations

import argparse

from supervisor.cli.options.option_values import add_json, print_shipped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    from supervisor.config import available_policies

    print_shipped("POLICY", available_policies(), as_json=args.json)
    return 0
