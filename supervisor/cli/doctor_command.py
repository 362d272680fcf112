"""Go through the checklist before a long training.

Disk, memory, devices and versions; with SCRIPT also what the training itself needs. Exit code 0 if
all is well, 1 if not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from supervisor.cli.entry_point import entry_point
from supervisor.cli.script_arguments import parse_with_script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "supervisor doctor [OPTIONS] [SCRIPT [SCRIPT_ARGS...]]"
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_script(parser, words, needs_script=False)


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.output import print_json, print_table

    doctor = entry_point("doctor", "supervisor.analysis.doctor", "doctor")
    checks = doctor(args.script, args.arguments)
    if args.json:
        print_json(checks)
    else:
        rows = [("ok" if check.ok else "NOT OK", check.name, check.detail) for check in checks]
        print_table(("", "CHECK", "DETAIL"), rows)
    return 0 if all(check.ok for check in checks) else 1
