"""Inject faults into a training of yours and show what survives, at what cost.

Exit code 0 if every promised fault was survived, 1 if not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from supervisor.cli.entry_point import entry_point
from supervisor.cli.script_arguments import parse_with_script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "supervisor drill [OPTIONS] SCRIPT[:FUNCTION] [SCRIPT_ARGS...]"
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_script(parser, words)


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json

    drill = entry_point("drill", "supervisor.analysis.drill", "drill")
    result = drill(args.script, args.arguments)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0 if result.all_survived else 1
