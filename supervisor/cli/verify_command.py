"""Prove that a script resumes exactly, or name the first thing that differs.

Exit code 0 if it does, 1 if not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from supervisor.cli.entry_point import entry_point
from supervisor.cli.script_arguments import parse_with_script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "supervisor verify [OPTIONS] SCRIPT[:FUNCTION] [SCRIPT_ARGS...]"
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_script(parser, words)


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json

    verify = entry_point("verify", "supervisor.analysis.verify", "verify")
    result = verify(args.script, args.arguments)
    if args.json:
        print_json(result.to_dict())
    else:
        print(result)
    return 0 if result.exact else 1
