"""Find risky training code without running it.

Exit code 0 without findings, 1 with findings.
"""

from __future__ import annotations

import argparse

from supervisor.cli.options import option_values
from supervisor.errors import UsageError

EXIT_CODES = {"0": "nothing was found", "1": "something was found"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", type=option_values.path, help="a Python file or a folder"
    )
    for option, effect in (("--select", "run only these rules"), ("--ignore", "leave these out")):
        parser.add_argument(
            option, metavar="RULES", type=option_values.names, default=(), help=f"{effect} (a,b,c)"
        )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print one JSON document")
    shape.add_argument("--sarif", action="store_true", help="print SARIF, for code hosts")


def execute(args: argparse.Namespace) -> int:
    from supervisor.source_check.check import check_source

    if not args.path.exists():
        raise UsageError(f"{args.path}: no such file or folder: give what is to be checked")
    result = check_source(args.path, select=args.select, ignore=args.ignore)
    if args.sarif:
        from supervisor.source_check.finding import to_sarif

        option_values.print_json(to_sarif(result))
    elif args.json:
        option_values.print_json(result.to_dict())
    else:
        print(result)
    return 1 if result.findings else 0
